#pragma once

#include "kernels/cpu/op_tools.h"

// The pieces of attention over one chunk of at most kChunk keys, in key tiles of kKeyTile keys at positions 0, 32, 64, ...: the
// scores of all its tiles, then their softmax, then the weighted values. A row is one head of one query. For every row the
// dimensions of a score, the keys of a sum and the chunks of the online softmax (Milakov, Gimelshein, arXiv 1805.02867) come in
// one order, however many rows pass at once.

namespace slipstream::SLIPSTREAM_ISA {

constexpr int kRows = 3;  // at once: 3 x 4 accumulators and the operands fill the registers

// fp16 pages where 8 keys are contiguous for every dimension.
struct PagedTile {
    const std::uint16_t* k[4];  // of 8 keys: [D][stride]
    const std::uint16_t* v[4];  // of 8 keys: [8][D]
    int stride, head_dim;
    SLIPSTREAM_INLINE F32x8 key(const PagedTile& p, int d, int j) { return load_f16(p.k[j] + static_cast<std::ptrdiff_t>(d) * p.stride); }
    SLIPSTREAM_INLINE const std::uint16_t* value_row(const PagedTile& p, int t) { return p.v[t / 8] + (t % 8) * p.head_dim; }
    SLIPSTREAM_INLINE F32x8 value(const std::uint16_t* row, int d) { return load_f16(row + d); }
    // The values, line by line, while the scores are computed: 8 of them have as many lines as a quarter of the dimensions.
    SLIPSTREAM_INLINE void fetch_values(const PagedTile& p, int d) {
        if (d % 4 != 0) return;
        SLIPSTREAM_UNROLL for (int j = 0; j < 4; ++j) prefetch(p.v[j] + d * 8);
    }
};

// The same keys and values in float32: k [D][32], v [32][D].
struct FloatTile {
    const float *k, *v;
    int head_dim;
    SLIPSTREAM_INLINE F32x8 key(const FloatTile& p, int d, int j) { return load(p.k + d * kKeyTile + 8 * j); }
    SLIPSTREAM_INLINE const float* value_row(const FloatTile& p, int t) { return p.v + static_cast<std::ptrdiff_t>(t) * p.head_dim; }
    SLIPSTREAM_INLINE F32x8 value(const float* row, int d) { return load(row + d); }
    SLIPSTREAM_INLINE void fetch_values(const FloatTile&, int) {}
};

// s [R][32] = the products of R rows q [R][D] with the tile's keys.
template <int R, class Tile>
SLIPSTREAM_KERNEL void score_tile(const Tile& shared, const float* q, int head_dim, float* s) {
    const Tile tile = shared;
    F32x8 a[R][4];
    SLIPSTREAM_UNROLL for (int r = 0; r < R; ++r) {
        SLIPSTREAM_UNROLL for (int j = 0; j < 4; ++j) a[r][j] = zero();
    }
    for (int d = 0; d < head_dim; ++d) {
        Tile::fetch_values(tile, d);
        F32x8 b[R];
        SLIPSTREAM_UNROLL for (int r = 0; r < R; ++r) b[r] = set(q[r * head_dim + d]);
        SLIPSTREAM_UNROLL for (int j = 0; j < 4; ++j) {
            const F32x8 key = Tile::key(tile, d, j);
            SLIPSTREAM_UNROLL for (int r = 0; r < R; ++r) {
                a[r][j] = fma(key, b[r], a[r][j]);
                SLIPSTREAM_PIN(a[r][j]);
            }
        }
    }
    SLIPSTREAM_UNROLL for (int r = 0; r < R; ++r) {
        SLIPSTREAM_UNROLL for (int j = 0; j < 4; ++j) store(s + r * kKeyTile + 8 * j, a[r][j]);
    }
}

// o[r][from .. from + 8 N) += sum over the keys first .. last - 1 of p[r][key] * value.
template <int R, int N, class Tile>
SLIPSTREAM_INLINE void add_values(const Tile& tile, const float* p, int first, int last, int from, float* o, std::ptrdiff_t ldo) {
    F32x8 c[R][N];
    SLIPSTREAM_UNROLL for (int r = 0; r < R; ++r) {
        SLIPSTREAM_UNROLL for (int n = 0; n < N; ++n) c[r][n] = load(o + r * ldo + from + 8 * n);
    }
    for (int t = first; t < last; ++t) {
        const auto* row = Tile::value_row(tile, t);
        F32x8 b[R];
        SLIPSTREAM_UNROLL for (int r = 0; r < R; ++r) b[r] = set(p[r * kKeyTile + t]);
        SLIPSTREAM_UNROLL for (int n = 0; n < N; ++n) {
            const F32x8 value = Tile::value(row, from + 8 * n);
            SLIPSTREAM_UNROLL for (int r = 0; r < R; ++r) {
                c[r][n] = fma(value, b[r], c[r][n]);
                SLIPSTREAM_PIN(c[r][n]);
            }
        }
    }
    SLIPSTREAM_UNROLL for (int r = 0; r < R; ++r) {
        SLIPSTREAM_UNROLL for (int n = 0; n < N; ++n) store(o + r * ldo + from + 8 * n, c[r][n]);
    }
}

// A row's result: [0] its largest score (scores are logarithms to base 2), [1] the sum of weights, [8 ...) their weighted values.
constexpr int kStateHead = 8;
constexpr float kNothing = -3.0e38f;

template <int R, class Tile>
SLIPSTREAM_KERNEL void value_tile(const Tile& shared, const float* p, int head_dim, int first, int last, float* state) {
    const Tile tile = shared;
    const std::ptrdiff_t ld = head_dim + kStateHead;
    float* o = state + kStateHead;
    int d = 0;
    for (; d + 32 <= head_dim; d += 32) add_values<R, 4>(tile, p, first, last, d, o, ld);
    for (; d < head_dim; d += 8) add_values<R, 1>(tile, p, first, last, d, o, ld);
}

template <class Tile>
SLIPSTREAM_INLINE void score(int rows, const Tile& tile, const float* q, int head_dim, float* s) {
    if (rows == 3) score_tile<3>(tile, q, head_dim, s);
    else if (rows == 2) score_tile<2>(tile, q, head_dim, s);
    else score_tile<1>(tile, q, head_dim, s);
}

template <class Tile>
SLIPSTREAM_INLINE void weigh(int rows, const Tile& tile, const float* p, int head_dim, int first, int last, float* state) {
    if (rows == 3) value_tile<3>(tile, p, head_dim, first, last, state);
    else if (rows == 2) value_tile<2>(tile, p, head_dim, first, last, state);
    else value_tile<1>(tile, p, head_dim, first, last, state);
}

// One row's scores of a chunk to weights, of which the keys first .. last - 1 are visible; tiles lie `stride` floats apart.
SLIPSTREAM_KERNEL void soften(float* s, std::ptrdiff_t stride, int first, int last, float cap, float* state) {
    const int begin = first / kKeyTile, end = (last + kKeyTile - 1) / kKeyTile;
    const auto hide = [&](int tile, float with) {
        float* at = s + tile * stride;
        for (int t = 0; t < first - tile * kKeyTile; ++t) at[t] = with;
        for (int t = last > tile * kKeyTile ? last - tile * kKeyTile : 0; t < kKeyTile; ++t) at[t] = with;
    };
    F32x8 top[4] = {set(kNothing), set(kNothing), set(kNothing), set(kNothing)}, total[4] = {zero(), zero(), zero(), zero()};
    for (int i = begin; i < end; ++i) {
        float* z = s + i * stride;
        if (cap != 0.0f) {
            for (int j = 0; j < kKeyTile; j += 8) store(z + j, mul(tanh(div(load(z + j), set(cap))), set(cap)));
        }
        if (i == begin || i + 1 == end) hide(i, kNothing);
        SLIPSTREAM_UNROLL for (int j = 0; j < 4; ++j) top[j] = max(load(z + 8 * j), top[j]);
    }
    const float peak = largest(max(max(top[0], top[1]), max(top[2], top[3])));
    const F32x8 highest = set(peak);
    for (int i = begin; i < end; ++i) {
        float* z = s + i * stride;
        SLIPSTREAM_UNROLL for (int j = 0; j < 4; ++j) store(z + 8 * j, exp2_below(sub(load(z + 8 * j), highest)));
        if (i == begin || i + 1 == end) hide(i, 0.0f);
        SLIPSTREAM_UNROLL for (int j = 0; j < 4; ++j) total[j] = add(total[j], load(z + 8 * j));
    }
    state[0] = peak;
    state[1] = sum(add(add(total[0], total[1]), add(total[2], total[3])));
}

// `into` and the next chunk's `part` of `heads` rows.
SLIPSTREAM_KERNEL void merge(float* into, const float* part, int heads, int head_dim) {
    const std::ptrdiff_t ld = head_dim + kStateHead;
    for (int h = 0; h < heads; ++h, into += ld, part += ld) {
        const float top = part[0] > into[0] ? part[0] : into[0];
        alignas(32) float both[8] = {into[0] - top, part[0] - top};
        store(both, exp2_below(load(both)));
        const float a = both[0], b = both[1];
        into[0] = top;
        into[1] = into[1] * a + part[1] * b;
        for (int d = kStateHead; d < ld; d += 8) store(into + d, fma(load(part + d), set(b), mul(load(into + d), set(a))));
    }
}

SLIPSTREAM_INLINE void finish_heads(const float* state, int heads, int head_dim, float* out) {
    for (int h = 0; h < heads; ++h, state += head_dim + kStateHead, out += head_dim) {
        const F32x8 factor = set(1.0f / state[1]);
        for (int d = 0; d < head_dim; d += 8) store(out + d, mul(load(state + kStateHead + d), factor));
    }
}

}  // namespace slipstream::SLIPSTREAM_ISA
