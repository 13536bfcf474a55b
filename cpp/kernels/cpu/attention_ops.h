#pragma once

#include "kernels/cpu/attention_kernels.h"

// Paged attention. Paged KV: Kwon et al., arXiv 2309.06180.

namespace slipstream::SLIPSTREAM_ISA {

struct Page {
    std::ptrdiff_t k, v;  // element offsets: K [D][block_size], V [block_size][D]
};

SLIPSTREAM_INLINE Page page_of(const AttentionOp& op, int block, int kv_head) {
    const std::ptrdiff_t half = static_cast<std::ptrdiff_t>(op.block_size) * op.head_dim;
    const std::ptrdiff_t at = (static_cast<std::ptrdiff_t>(block) * op.num_kv_heads + kv_head) * 2 * half;
    return {at, at + half};
}

SLIPSTREAM_INLINE float kv_get(const AttentionOp& op, std::ptrdiff_t i) {
    if (op.kv_type == KVType::F32) return static_cast<const float*>(op.cache)[i];
    const std::uint16_t bits = static_cast<const std::uint16_t*>(op.cache)[i];
    if (op.kv_type == KVType::F16) return to_float(bits);
    float x;
    const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
    __builtin_memcpy(&x, &wide, 4);
    return x;
}

SLIPSTREAM_INLINE void kv_put(const AttentionOp& op, std::ptrdiff_t i, float x) {
    if (op.kv_type == KVType::F32) {
        static_cast<float*>(op.cache)[i] = x;
    } else if (op.kv_type == KVType::F16) {
        static_cast<std::uint16_t*>(op.cache)[i] = to_f16(x);
    } else {
        std::uint32_t bits;
        __builtin_memcpy(&bits, &x, 4);
        static_cast<std::uint16_t*>(op.cache)[i] = static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
    }
}

// Eight numbers in a row.
SLIPSTREAM_INLINE F32x8 kv_load(const AttentionOp& op, std::ptrdiff_t i) {
    if (op.kv_type == KVType::F32) return load(static_cast<const float*>(op.cache) + i);
    const std::uint16_t* p = static_cast<const std::uint16_t*>(op.cache) + i;
    return op.kv_type == KVType::F16 ? load_f16(p) : load_bf16(p);
}

// The key and value of one token and KV head, normalised and rotated, into their slot.
SLIPSTREAM_INLINE void write_slot(const AttentionOp& op, const Step& step, int token, int kv_head, float* work) {
    const int D = op.head_dim;
    const float* k = at(step, op.k, token) + kv_head * D;
    const float* v = at(step, op.v, token) + kv_head * D;
    if (op.k_norm != nullptr) rms_norm(k, op.k_norm, op.k_eps, D, D, work);
    else for (int d = 0; d < D; d += 8) store(work + d, load(k + d));
    if (op.k_rope.pairs != 0) rotate(work, op.k_rope, step.positions[token]);
    const int slot = step.slots[token], offset = slot % op.block_size;
    const Page page = page_of(op, slot / op.block_size, kv_head);
    for (int d = 0; d < D; ++d) kv_put(op, page.k + static_cast<std::ptrdiff_t>(d) * op.block_size + offset, work[d]);
    for (int d = 0; d < D; ++d) kv_put(op, page.v + static_cast<std::ptrdiff_t>(offset) * D + d, v[d]);
}

// [heads of one KV head][D], normalised, rotated and scaled.
SLIPSTREAM_INLINE void load_queries(const AttentionOp& op, const Step& step, int token, int kv_head, float* out) {
    const int D = op.head_dim, heads = op.num_heads / op.num_kv_heads;
    const float* q = at(step, op.q, token) + kv_head * heads * D;
    for (int h = 0; h < heads; ++h, q += D, out += D) {
        if (op.q_norm != nullptr) rms_norm(q, op.q_norm, op.q_eps, D, D, out);
        else for (int d = 0; d < D; d += 8) store(out + d, load(q + d));
        if (op.q_rope.pairs != 0) rotate(out, op.q_rope, step.positions[token]);
        for (int d = 0; d < D; d += 8) store(out + d, mul(load(out + d), set(op.scale)));
    }
}

SLIPSTREAM_INLINE int first_key(const AttentionOp& op, int position) {
    return op.window != 0 && position >= op.window ? position - op.window + 1 : 0;
}

SLIPSTREAM_INLINE PagedTile paged_tile(const AttentionOp& op, const std::int32_t* table, int kv_head, int start, int length) {
    const std::uint16_t* cache = static_cast<const std::uint16_t*>(op.cache);
    PagedTile tile;
    tile.stride = op.block_size;
    tile.head_dim = op.head_dim;
    for (int j = 0; j < 4; ++j) {
        const int key = start + 8 * j < length ? start + 8 * j : start;  // keys beyond the end are masked, not read
        const int offset = key % op.block_size;
        const Page page = page_of(op, table[key / op.block_size], kv_head);
        tile.k[j] = cache + page.k + offset;
        tile.v[j] = cache + page.v + static_cast<std::ptrdiff_t>(offset) * op.head_dim;
    }
    return tile;
}

// Any page: keys start .. min(start + 32, length) - 1 in float32, the rest zero.
SLIPSTREAM_INLINE void float_tile(const AttentionOp& op, const std::int32_t* table, int kv_head, int start, int length,
                                  float* k, float* v) {
    const int D = op.head_dim;
    for (int t = 0; t < kKeyTile;) {
        const int key = start + t;
        if (key >= length) {
            for (int d = 0; d < D; ++d) k[d * kKeyTile + t] = 0.0f;
            for (int d = 0; d < D; d += 8) store(v + static_cast<std::ptrdiff_t>(t) * D + d, zero());
            ++t;
            continue;
        }
        const int offset = key % op.block_size;
        const Page page = page_of(op, table[key / op.block_size], kv_head);
        const bool eight = op.block_size % 8 == 0 && length - key >= 8;
        const int n = eight ? 8 : 1;
        for (int d = 0; d < D; ++d) {
            const std::ptrdiff_t from = page.k + static_cast<std::ptrdiff_t>(d) * op.block_size + offset;
            if (eight) store(k + d * kKeyTile + t, kv_load(op, from));
            else k[d * kKeyTile + t] = kv_get(op, from);
        }
        for (int i = 0; i < n; ++i) {
            const std::ptrdiff_t from = page.v + static_cast<std::ptrdiff_t>(offset + i) * D;
            for (int d = 0; d < D; d += 8) store(v + static_cast<std::ptrdiff_t>(t + i) * D + d, kv_load(op, from + d));
        }
        t += n;
    }
}

// The heads' results of one token: float32, and quantised where whole groups belong to one KV head.
SLIPSTREAM_INLINE void deliver(const AttentionOp& op, const Step& step, int token, int kv_head, const float* state) {
    const int heads = op.num_heads / op.num_kv_heads, columns = heads * op.head_dim;
    float* out = at(step, op.out, token) + kv_head * columns;
    finish_heads(state, heads, op.head_dim, out);
    if (op.tiles >= 0) quantize_row(out, kv_head * columns / 32, columns / 32, slot_of(step, op.tiles, kTokens, token, 0));
}

SLIPSTREAM_INLINE void run_task(const AttentionOp& op, const Step& step, const AttentionSchedule& schedule,
                                const AttentionTask& task, float* work) {
    const int D = op.head_dim, heads = op.num_heads / op.num_kv_heads, n = task.num_queries;
    const std::ptrdiff_t part = part_floats(op), query = static_cast<std::ptrdiff_t>(heads) * D;
    float* q = work;                       // [n][heads][D]
    float* total = q + kQueryBlock * query;  // [n][heads][D + 8]
    float* chunk = total + kQueryBlock * part;
    float* k = chunk + kQueryBlock * part;
    float* v = k + kKeyTile * D;
    const int length = step.kv_len[task.row];
    const std::int32_t* table = step.block_table + static_cast<std::ptrdiff_t>(task.row) * step.table_width;
    if (!schedule.write_first && task.last_chunk == task.position / kChunk) write_slot(op, step, task.token, task.kv_head, k);
    for (int i = 0; i < n; ++i) load_queries(op, step, task.token + i, task.kv_head, q + i * query);
    const bool direct = n == 1 && op.kv_type == KVType::F16 && op.block_size % 8 == 0;
    const int last_key = task.position + n - 1;
    for (int c = task.first_chunk; c <= task.last_chunk; ++c) {
        for (int i = 0; i < n; ++i) {
            for (int h = 0; h < heads; ++h) reset(chunk + i * part + static_cast<std::ptrdiff_t>(h) * (D + kStateHead), D);
        }
        const int low = first_key(op, task.position) / kKeyTile * kKeyTile;
        const int from = c * kChunk > low ? c * kChunk : low;
        const int to = (c + 1) * kChunk <= last_key ? (c + 1) * kChunk : last_key + 1;
        for (int start = from; start < to; start += kKeyTile) {
            if (direct) {
                const int lo = first_key(op, task.position) - start, hi = task.position + 1 - start;
                attend(paged_tile(op, table, task.kv_head, start, length), q, heads, D, lo > 0 ? lo : 0,
                       hi < kKeyTile ? hi : kKeyTile, op.soft_cap, chunk);
                continue;
            }
            float_tile(op, table, task.kv_head, start, length, k, v);
            const FloatTile tile = {k, v, D};
            for (int i = 0; i < n; ++i) {
                const int lo = first_key(op, task.position + i) - start, hi = task.position + i + 1 - start;
                if (lo >= kKeyTile || hi <= 0) continue;
                attend(tile, q + i * query, heads, D, lo > 0 ? lo : 0, hi < kKeyTile ? hi : kKeyTile, op.soft_cap, chunk + i * part);
            }
        }
        for (int i = 0; i < n; ++i) {
            const int position = task.position + i;
            const int first = first_key(op, position) / kChunk;
            float* to_part = task.part >= 0 ? schedule.parts + (task.part + static_cast<std::ptrdiff_t>(i) * task.part_step + c - task.first_chunk) * part : total + i * part;
            if (c < first || c > position / kChunk) continue;
            if (task.part >= 0 || c == first) {
                for (std::ptrdiff_t d = 0; d < part; d += 8) store(to_part + d, load(chunk + i * part + d));
            } else {
                merge(to_part, chunk + i * part, heads, D);
            }
        }
    }
    if (task.part >= 0) return;
    for (int i = 0; i < n; ++i) deliver(op, step, task.token + i, task.kv_head, total + i * part);
}

SLIPSTREAM_KERNEL void run_attention_write(const AttentionOp& op, const Step& step, int thread, int first, int last) {
    for (int token = first; token < last; ++token) {
        for (int head = 0; head < op.num_kv_heads; ++head) write_slot(op, step, token, head, step.scratch[thread]);
    }
}

SLIPSTREAM_KERNEL void run_attention(const AttentionOp& op, const Step& step, int thread, int first, int last) {
    const AttentionSchedule& schedule = step.schedules[op.schedule];
    for (int i = first; i < last; ++i) {
        run_task(op, step, schedule, schedule.tasks[i], step.scratch[thread]);
    }
}

SLIPSTREAM_KERNEL void run_attention_merge(const AttentionOp& op, const Step& step, int, int from, int to) {
    const AttentionSchedule& schedule = step.schedules[op.schedule];
    const std::ptrdiff_t part = part_floats(op);
    const int heads = op.num_heads / op.num_kv_heads;
    for (int i = from; i < to; ++i) {
        const AttentionMerge& m = schedule.merges[i];
        const int first = first_key(op, m.position) / kChunk;
        float* into = schedule.parts + (m.part + first - m.first_chunk) * part;
        for (int c = first + 1; c <= m.position / kChunk; ++c) {
            merge(into, schedule.parts + (m.part + c - m.first_chunk) * part, heads, op.head_dim);
        }
        deliver(op, step, m.token, m.kv_head, into);
    }
}

}  // namespace slipstream::SLIPSTREAM_ISA
