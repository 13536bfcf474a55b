#include "runtime/batch.h"

#include <stdexcept>
#include <string>

namespace slipstream {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }

std::string range(const char* name, int i, std::int64_t value, std::int64_t limit) {
    return std::string(name) + "[" + std::to_string(i) + "] is " + std::to_string(value) + ", outside 0 .. " +
           std::to_string(limit - 1);
}

}  // namespace

void check_batch(const BatchArrays& b, const BatchLimits& limits) {
    for (int i = 0; i < b.num_tokens; ++i) {
        if (b.token_ids[i] < 0 || b.token_ids[i] >= limits.vocabulary) refuse(range("token_ids", i, b.token_ids[i], limits.vocabulary));
        if (b.positions[i] < 0 || b.positions[i] >= limits.max_position) refuse(range("positions", i, b.positions[i], limits.max_position));
        const std::int64_t slots = static_cast<std::int64_t>(limits.num_blocks) * limits.block_size;
        if (limits.block_size != 0 && (b.slots[i] < 0 || b.slots[i] >= slots)) refuse(range("slots", i, b.slots[i], slots));
    }
    for (int i = 0; i < b.num_logits; ++i) {
        if (b.logits_rows[i] < 0 || b.logits_rows[i] >= b.num_tokens) refuse(range("logits_rows", i, b.logits_rows[i], b.num_tokens));
    }
    if (limits.block_size == 0) return;
    if (b.query_start[0] != 0 || b.query_start[b.num_rows] != b.num_tokens) refuse("query_start must run from 0 to the number of tokens");
    for (int r = 0; r < b.num_rows; ++r) {
        const int begin = b.query_start[r], n = b.query_start[r + 1] - begin;
        if (n < 1) refuse("row " + std::to_string(r) + " has no token");
        if (n > b.num_tokens - begin) refuse("query_start must run from 0 to the number of tokens");
        if (b.kv_len[r] < n) refuse("row " + std::to_string(r) + " attends to fewer tokens than it brings");
        const int blocks = (b.kv_len[r] - 1) / limits.block_size + 1;
        if (blocks > b.table_width) refuse("row " + std::to_string(r) + " has too few blocks");
        const std::int32_t* table = b.block_table + static_cast<std::ptrdiff_t>(r) * b.table_width;
        for (int i = 0; i < blocks; ++i) {
            if (table[i] < 0 || table[i] >= limits.num_blocks) refuse(range("block_table", r, table[i], limits.num_blocks));
        }
        for (int i = 0; i < n; ++i) {
            const int position = b.kv_len[r] - n + i;
            if (b.positions[begin + i] != position) refuse("positions of row " + std::to_string(r) + " are not its last tokens");
            const int slot = table[position / limits.block_size] * limits.block_size + position % limits.block_size;
            if (b.slots[begin + i] != slot) refuse("slots of row " + std::to_string(r) + " are not in its blocks");
        }
    }
}

}  // namespace slipstream
