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

template <KVType Type>
SLIPSTREAM_INLINE float kv_get(const AttentionOp& op, std::ptrdiff_t i) {
    if constexpr (Type == KVType::F32) return static_cast<const float*>(op.cache)[i];
    const std::uint16_t bits = static_cast<const std::uint16_t*>(op.cache)[i];
    if constexpr (Type == KVType::F16) return to_float(bits);
    float x;
    const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
    __builtin_memcpy(&x, &wide, 4);
    return x;
}

template <KVType Type>
SLIPSTREAM_INLINE void kv_put(const AttentionOp& op, std::ptrdiff_t i, float x) {
    if constexpr (Type == KVType::F32) {
        static_cast<float*>(op.cache)[i] = x;
    } else if constexpr (Type == KVType::F16) {
        static_cast<std::uint16_t*>(op.cache)[i] = to_f16(x);
    } else {
        std::uint32_t bits;
        __builtin_memcpy(&bits, &x, 4);
        static_cast<std::uint16_t*>(op.cache)[i] = static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
    }
}

// Eight numbers in a row.
template <KVType Type>
SLIPSTREAM_INLINE F32x8 kv_load(const AttentionOp& op, std::ptrdiff_t i) {
    if constexpr (Type == KVType::F32) return load(static_cast<const float*>(op.cache) + i);
    const std::uint16_t* p = static_cast<const std::uint16_t*>(op.cache) + i;
    if constexpr (Type == KVType::F16) return load_f16(p);
    else return load_bf16(p);
}

// A key, its dimensions a page's row apart, and a value, side by side.
template <KVType Type>
SLIPSTREAM_INLINE void put_slot(const AttentionOp& op, const float* k, const float* v, std::ptrdiff_t key, std::ptrdiff_t value) {
    const int D = op.head_dim;
    if constexpr (Type == KVType::F16) {
        auto* cache = static_cast<std::uint16_t*>(op.cache);
        for (int d = 0; d < D; d += 8) {
            std::uint16_t halves[8];
            store_f16(halves, load(k + d));
            for (int i = 0; i < 8; ++i, key += op.block_size) cache[key] = halves[i];
            store_f16(cache + value + d, load(v + d));
        }
    } else {
        for (int d = 0; d < D; ++d, key += op.block_size) kv_put<Type>(op, key, k[d]);
        for (int d = 0; d < D; ++d) kv_put<Type>(op, value + d, v[d]);
    }
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
    const std::ptrdiff_t value = page.v + static_cast<std::ptrdiff_t>(offset) * D;
    if (op.kv_type == KVType::F32) put_slot<KVType::F32>(op, work, v, page.k + offset, value);
    else if (op.kv_type == KVType::F16) put_slot<KVType::F16>(op, work, v, page.k + offset, value);
    else put_slot<KVType::BF16>(op, work, v, page.k + offset, value);
}

// [heads of one KV head][D], normalised, rotated and scaled, so that scores come as powers of two.
SLIPSTREAM_INLINE void load_queries(const AttentionOp& op, const Step& step, int token, int kv_head, float* out) {
    const int D = op.head_dim, heads = op.num_heads / op.num_kv_heads;
    const F32x8 scale = set(op.scale * kLog2E);
    const float* q = at(step, op.q, token) + kv_head * heads * D;
    for (int h = 0; h < heads; ++h, q += D, out += D) {
        if (op.q_norm != nullptr) rms_norm(q, op.q_norm, op.q_eps, D, D, out);
        else for (int d = 0; d < D; d += 8) store(out + d, load(q + d));
        if (op.q_rope.pairs != 0) rotate(out, op.q_rope, step.positions[token]);
        for (int d = 0; d < D; d += 8) store(out + d, mul(load(out + d), scale));
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

// Any page: keys start .. min(start + 32, length) - 1 in float32, the rest zero. k [D][32].
template <KVType Type>
SLIPSTREAM_KERNEL void float_keys(const AttentionOp& op, const std::int32_t* table, int kv_head, int start, int length, float* k) {
    const int D = op.head_dim;
    for (int t = 0; t < kKeyTile;) {
        const int key = start + t;
        if (key >= length) {
            for (int d = 0; d < D; ++d) k[d * kKeyTile + t] = 0.0f;
            ++t;
            continue;
        }
        const int offset = key % op.block_size;
        const Page page = page_of(op, table[key / op.block_size], kv_head);
        const bool eight = op.block_size % 8 == 0 && length - key >= 8;
        const std::ptrdiff_t ld = op.block_size;
        std::ptrdiff_t from = page.k + offset;
        if (eight) {
            float* to = k + t;
            for (int d = 0; d < D; d += 2, to += 2 * kKeyTile, from += 2 * ld) {
                store(to, kv_load<Type>(op, from));
                store(to + kKeyTile, kv_load<Type>(op, from + ld));
            }
        } else {
            for (int d = 0; d < D; ++d, from += ld) k[d * kKeyTile + t] = kv_get<Type>(op, from);
        }
        t += eight ? 8 : 1;
    }
}

// Likewise values of keys start .. min(start + 32, length) - 1; the rest is not read. v [32][D].
template <KVType Type>
SLIPSTREAM_KERNEL void float_values(const AttentionOp& op, const std::int32_t* table, int kv_head, int start, int length, float* v) {
    const int D = op.head_dim, count = length - start < kKeyTile ? length - start : kKeyTile;
    for (int t = 0; t < count;) {
        const int offset = (start + t) % op.block_size, left = op.block_size - offset, n = left < count - t ? left : count - t;
        const std::ptrdiff_t from = page_of(op, table[(start + t) / op.block_size], kv_head).v + static_cast<std::ptrdiff_t>(offset) * D;
        float* to = v + static_cast<std::ptrdiff_t>(t) * D;
        for (int i = 0; i < n * D; i += 8) store(to + i, kv_load<Type>(op, from + i));
        t += n;
    }
}

SLIPSTREAM_INLINE void float_keys(const AttentionOp& op, const std::int32_t* table, int kv_head, int start, int length, float* k) {
    if (op.kv_type == KVType::F32) float_keys<KVType::F32>(op, table, kv_head, start, length, k);
    else if (op.kv_type == KVType::F16) float_keys<KVType::F16>(op, table, kv_head, start, length, k);
    else float_keys<KVType::BF16>(op, table, kv_head, start, length, k);
}

SLIPSTREAM_INLINE void float_values(const AttentionOp& op, const std::int32_t* table, int kv_head, int start, int length, float* v) {
    if (op.kv_type == KVType::F32) float_values<KVType::F32>(op, table, kv_head, start, length, v);
    else if (op.kv_type == KVType::F16) float_values<KVType::F16>(op, table, kv_head, start, length, v);
    else float_values<KVType::BF16>(op, table, kv_head, start, length, v);
}

// The heads' results of one token: float32, and quantised where whole groups belong to one KV head.
SLIPSTREAM_INLINE void deliver(const AttentionOp& op, const Step& step, int token, int kv_head, const float* state) {
    const int heads = op.num_heads / op.num_kv_heads, columns = heads * op.head_dim;
    float* out = at(step, op.out, token) + kv_head * columns;
    finish_heads(state, heads, op.head_dim, out);
    if (op.tiles >= 0) quantize_row(out, kv_head * columns / 32, columns / 32, slot_of(step, op.tiles, kTokens, token, 0));
}

// The rows of a task: row r is head r % heads of query r / heads.
struct TaskRows {
    int position, num_queries, heads, window;

    // The visible keys of query i, relative to `start`.
    SLIPSTREAM_INLINE int low(const TaskRows& t, int i, int start) {
        const int p = t.position + i;
        return (t.window != 0 && p >= t.window ? p - t.window + 1 : 0) - start;
    }
    SLIPSTREAM_INLINE int high(const TaskRows& t, int i, int start) { return t.position + i + 1 - start; }
};

// f(row, count, first query, last query) for blocks of at most kRows rows.
template <class F>
SLIPSTREAM_INLINE void for_row_blocks(const TaskRows& t, F f) {
    const int rows = t.num_queries * t.heads;
    for (int row = 0, query = 0, head = 0; row < rows;) {
        const int left = rows - row, n = left >= 5 || left == 3 ? 3 : left >= 2 ? 2 : 1;
        const int begin = query;
        for (head += n; head >= t.heads; head -= t.heads) ++query;
        f(row, n, begin, head == 0 ? query - 1 : query);
        row += n;
    }
}

// Scores of one tile at `start`. s [rows][32].
template <class Tile>
SLIPSTREAM_INLINE void score_rows(const TaskRows& rows, const Tile& tile, int start, const float* q, int head_dim, float* s) {
    for_row_blocks(rows, [&](int row, int n, int first, int last) {
        if (TaskRows::high(rows, last, start) <= 0 || TaskRows::low(rows, first, start) >= kKeyTile) return;
        score(n, tile, q + static_cast<std::ptrdiff_t>(row) * head_dim, head_dim, s + row * kKeyTile);
    });
}

// Weighted values of one tile at `start`. p [rows][32], state [rows][D + 8].
template <class Tile>
SLIPSTREAM_INLINE void weigh_rows(const TaskRows& rows, const Tile& tile, int start, const float* p, int head_dim, float* state) {
    const auto some = [&](int row, int n, int query) {
        const int low = TaskRows::low(rows, query, start), high = TaskRows::high(rows, query, start);
        if (high <= 0 || low >= kKeyTile) return;
        weigh(n, tile, p + row * kKeyTile, head_dim, low > 0 ? low : 0, high < kKeyTile ? high : kKeyTile,
              state + static_cast<std::ptrdiff_t>(row) * (head_dim + kStateHead));
    };
    for_row_blocks(rows, [&](int row, int n, int first, int last) {
        const bool whole = TaskRows::high(rows, first, start) >= kKeyTile && TaskRows::low(rows, last, start) <= 0;
        if (first == last || whole) return some(row, n, first);
        // What a query may not see stays out of its sums even with weight zero: it may be infinite.
        for (int r = row; r < row + n; ++r) some(r, 1, r / rows.heads);
    });
}

constexpr int kDirectRows = 12;  // up to here, fp16 pages are converted as they are read

SLIPSTREAM_INLINE void run_task(const AttentionOp& op, const Step& step, const AttentionSchedule& schedule,
                                const AttentionTask& task, float* work) {
    const int D = op.head_dim, heads = op.num_heads / op.num_kv_heads, n = task.num_queries;
    const std::ptrdiff_t part = part_floats(op), query = static_cast<std::ptrdiff_t>(heads) * D;
    float* q = work;               // [n][heads][D]
    float* total = q + n * query;  // [n][heads][D + 8]
    float* chunk = total + n * part;
    float* s = chunk + n * part;  // [tiles of a chunk][n][heads][32]
    float* tile_floats = s + static_cast<std::ptrdiff_t>(n) * heads * kChunk;
    const int length = step.kv_len[task.row];
    const std::int32_t* table = step.block_table + static_cast<std::ptrdiff_t>(task.row) * step.table_width;
    if (!schedule.write_first && task.last_chunk == task.position / kChunk) write_slot(op, step, task.token, task.kv_head, tile_floats);
    for (int i = 0; i < n; ++i) load_queries(op, step, task.token + i, task.kv_head, q + i * query);
    const bool direct = n * heads <= kDirectRows && op.kv_type == KVType::F16 && op.block_size % 8 == 0;
    const TaskRows rows = {task.position, n, heads, op.window};
    const int last_key = task.position + n - 1;
    const std::ptrdiff_t stride = static_cast<std::ptrdiff_t>(n) * heads * kKeyTile;
    for (int c = task.first_chunk; c <= task.last_chunk; ++c) {
        const int low = first_key(op, task.position) / kKeyTile * kKeyTile;
        const int from = c * kChunk > low ? c * kChunk : low;
        const int to = (c + 1) * kChunk <= last_key ? (c + 1) * kChunk : last_key + 1;
        const auto tile_of = [&](int start) { return s + (start - c * kChunk) / kKeyTile * stride; };
        for (int start = from; start < to; start += kKeyTile) {
            if (direct) {
                score_rows(rows, paged_tile(op, table, task.kv_head, start, length), start, q, D, tile_of(start));
            } else {
                float_keys(op, table, task.kv_head, start, length, tile_floats);
                score_rows(rows, FloatTile{tile_floats, nullptr, D}, start, q, D, tile_of(start));
            }
        }
        for (int i = 0; i < n; ++i) {
            const int lo = TaskRows::low(rows, i, c * kChunk), hi = TaskRows::high(rows, i, c * kChunk);
            if (lo >= kChunk || hi <= 0) continue;
            for (int h = 0; h < heads; ++h) {
                float* state = chunk + i * part + static_cast<std::ptrdiff_t>(h) * (D + kStateHead);
                soften(s + (i * heads + h) * kKeyTile, stride, lo > 0 ? lo : 0, hi < kChunk ? hi : kChunk, op.soft_cap * kLog2E, state);
                for (int d = 0; d < D; d += 8) store(state + kStateHead + d, zero());
            }
        }
        for (int start = from; start < to; start += kKeyTile) {
            if (direct) {
                weigh_rows(rows, paged_tile(op, table, task.kv_head, start, length), start, tile_of(start), D, chunk);
            } else {
                float_values(op, table, task.kv_head, start, length, tile_floats);
                weigh_rows(rows, FloatTile{nullptr, tile_floats, D}, start, tile_of(start), D, chunk);
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
