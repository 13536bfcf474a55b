#pragma once

#include <cstdint>

namespace slipstream {

// The arrays of one batch; see ForwardBatch in Python.
struct BatchArrays {
    int num_tokens = 0, num_rows = 0, num_logits = 0, table_width = 0;
    const std::int32_t* token_ids = nullptr;
    const std::int32_t* positions = nullptr;
    const std::int32_t* slots = nullptr;
    const std::int32_t* query_start = nullptr;
    const std::int32_t* kv_len = nullptr;
    const std::int32_t* block_table = nullptr;
    const std::int32_t* logits_rows = nullptr;
};

// What a program's ops can look up.
struct BatchLimits {
    std::int64_t vocabulary = INT64_MAX;
    int max_position = INT32_MAX, num_blocks = INT32_MAX;
    int block_size = 0;  // 0: there is no attention, and nothing reads the rows, slots and blocks
};

// Throws std::invalid_argument for an index out of range, and for rows that contradict their slots and positions.
void check_batch(const BatchArrays& batch, const BatchLimits& limits);

}  // namespace slipstream
