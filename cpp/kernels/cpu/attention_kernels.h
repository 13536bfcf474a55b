#pragma once

#include "kernels/cpu/op_tools.h"

// One key tile of kKeyTile keys at positions 0, 32, 64, ... against a few query heads that share it. For every query head the
// dimensions of a score, the keys of a sum and the tiles of the online softmax (Milakov, Gimelshein, arXiv 1805.02867) come in
// one order, however many heads or queries pass at once.

namespace slipstream::SLIPSTREAM_ISA {

constexpr int kHeadGroup = 3;  // query heads at once: 3 x 4 accumulators and the operands fill the registers

// fp16 pages where 8 keys are contiguous for every dimension.
struct PagedTile {
    const std::uint16_t* k[4];  // of 8 keys: [D][stride]
    const std::uint16_t* v[4];  // of 8 keys: [8][D]
    int stride, head_dim;
    SLIPSTREAM_INLINE F32x8 key(const PagedTile& p, int d, int j) { return load_f16(p.k[j] + static_cast<std::ptrdiff_t>(d) * p.stride); }
    SLIPSTREAM_INLINE const std::uint16_t* value_row(const PagedTile& p, int t) { return p.v[t / 8] + (t % 8) * p.head_dim; }
    SLIPSTREAM_INLINE F32x8 value(const std::uint16_t* row, int d) { return load_f16(row + d); }
};

// The same keys and values in float32: k [D][32], v [32][D].
struct FloatTile {
    const float *k, *v;
    int head_dim;
    SLIPSTREAM_INLINE F32x8 key(const FloatTile& p, int d, int j) { return load(p.k + d * kKeyTile + 8 * j); }
    SLIPSTREAM_INLINE const float* value_row(const FloatTile& p, int t) { return p.v + static_cast<std::ptrdiff_t>(t) * p.head_dim; }
    SLIPSTREAM_INLINE F32x8 value(const float* row, int d) { return load(row + d); }
};

template <int H, class Tile>
SLIPSTREAM_INLINE void scores(const Tile& tile, const float* q, int head_dim, float* s) {
    F32x8 a[H][4];
    SLIPSTREAM_UNROLL for (int h = 0; h < H; ++h) {
        SLIPSTREAM_UNROLL for (int j = 0; j < 4; ++j) a[h][j] = zero();
    }
    for (int d = 0; d < head_dim; ++d) {
        F32x8 b[H];
        SLIPSTREAM_UNROLL for (int h = 0; h < H; ++h) b[h] = set(q[h * head_dim + d]);
        SLIPSTREAM_UNROLL for (int j = 0; j < 4; ++j) {
            const F32x8 key = Tile::key(tile, d, j);
            SLIPSTREAM_UNROLL for (int h = 0; h < H; ++h) {
                a[h][j] = fma(key, b[h], a[h][j]);
                SLIPSTREAM_PIN(a[h][j]);
            }
        }
    }
    SLIPSTREAM_UNROLL for (int h = 0; h < H; ++h) {
        SLIPSTREAM_UNROLL for (int j = 0; j < 4; ++j) store(s + h * kKeyTile + 8 * j, a[h][j]);
    }
}

// o[h][from .. from + 8 N) += sum over the keys first .. last - 1 of p[h][key] * value.
template <int H, int N, class Tile>
SLIPSTREAM_INLINE void add_values(const Tile& tile, const float* p, int first, int last, int from, float* o, std::ptrdiff_t ldo) {
    F32x8 c[H][N];
    SLIPSTREAM_UNROLL for (int h = 0; h < H; ++h) {
        SLIPSTREAM_UNROLL for (int n = 0; n < N; ++n) c[h][n] = load(o + h * ldo + from + 8 * n);
    }
    for (int t = first; t < last; ++t) {
        const auto* row = Tile::value_row(tile, t);
        F32x8 b[H];
        SLIPSTREAM_UNROLL for (int h = 0; h < H; ++h) b[h] = set(p[h * kKeyTile + t]);
        SLIPSTREAM_UNROLL for (int n = 0; n < N; ++n) {
            const F32x8 value = Tile::value(row, from + 8 * n);
            SLIPSTREAM_UNROLL for (int h = 0; h < H; ++h) {
                c[h][n] = fma(value, b[h], c[h][n]);
                SLIPSTREAM_PIN(c[h][n]);
            }
        }
    }
    SLIPSTREAM_UNROLL for (int h = 0; h < H; ++h) {
        SLIPSTREAM_UNROLL for (int n = 0; n < N; ++n) store(o + h * ldo + from + 8 * n, c[h][n]);
    }
}

// A query head's running result: [0] the largest score so far, [1] the sum of weights, [8 ...) their weighted values.
constexpr int kStateHead = 8;
constexpr float kNothing = -3.0e38f;

SLIPSTREAM_INLINE void reset(float* state, int head_dim) {
    state[0] = kNothing;
    state[1] = 0.0f;
    for (int d = 0; d < head_dim; d += 8) store(state + kStateHead + d, zero());
}

// Scores to weights; the state's past is rescaled when the maximum grows.
SLIPSTREAM_INLINE void soften(float* s, int first, int last, float cap, float* state, int head_dim) {
    if (cap != 0.0f) {
        SLIPSTREAM_UNROLL for (int j = 0; j < 4; ++j) store(s + 8 * j, mul(tanh(div(load(s + 8 * j), set(cap))), set(cap)));
    }
    for (int t = 0; t < first; ++t) s[t] = kNothing;
    for (int t = last; t < kKeyTile; ++t) s[t] = kNothing;
    F32x8 z[4] = {load(s), load(s + 8), load(s + 16), load(s + 24)};
    const float peak = largest(max(max(z[0], z[1]), max(z[2], z[3])));
    const float top = peak > state[0] ? peak : state[0];
    SLIPSTREAM_UNROLL for (int j = 0; j < 4; ++j) {
        z[j] = select_less(z[j], set(-1.0e38f), zero(), exp(sub(z[j], set(top))));
        store(s + 8 * j, z[j]);
    }
    if (top != state[0]) {
        const float keep = exp(state[0] - top);
        state[1] *= keep;
        for (int d = 0; d < head_dim; d += 8) store(state + kStateHead + d, mul(load(state + kStateHead + d), set(keep)));
        state[0] = top;
    }
    state[1] += sum(add(add(z[0], z[1]), add(z[2], z[3])));
}

template <int H, class Tile>
SLIPSTREAM_KERNEL void attend_heads(const Tile& tile, const float* q, int head_dim, int first, int last, float cap, float* state) {
    alignas(32) float s[H * kKeyTile];
    scores<H>(tile, q, head_dim, s);
    const std::ptrdiff_t ld = head_dim + kStateHead;
    SLIPSTREAM_UNROLL for (int h = 0; h < H; ++h) soften(s + h * kKeyTile, first, last, cap, state + h * ld, head_dim);
    float* o = state + kStateHead;
    int d = 0;
    for (; d + 32 <= head_dim; d += 32) add_values<H, 4>(tile, s, first, last, d, o, ld);
    for (; d < head_dim; d += 8) add_values<H, 1>(tile, s, first, last, d, o, ld);
}

// `heads` query heads [heads][D] of one query; keys first .. last - 1 of the tile are visible.
template <class Tile>
SLIPSTREAM_INLINE void attend(const Tile& tile, const float* q, int heads, int head_dim, int first, int last, float cap,
                              float* state) {
    const std::ptrdiff_t ld = head_dim + kStateHead;
    while (heads > 0) {
        const int n = heads >= 5 || heads == 3 ? 3 : heads >= 2 ? 2 : 1;
        if (n == 3) attend_heads<3>(tile, q, head_dim, first, last, cap, state);
        else if (n == 2) attend_heads<2>(tile, q, head_dim, first, last, cap, state);
        else attend_heads<1>(tile, q, head_dim, first, last, cap, state);
        heads -= n;
        q += static_cast<std::ptrdiff_t>(n) * head_dim;
        state += n * ld;
    }
}

// `into` and the next chunk's `part` of `heads` query heads.
SLIPSTREAM_KERNEL void merge(float* into, const float* part, int heads, int head_dim) {
    const std::ptrdiff_t ld = head_dim + kStateHead;
    for (int h = 0; h < heads; ++h, into += ld, part += ld) {
        const float top = part[0] > into[0] ? part[0] : into[0];
        const float a = exp(into[0] - top), b = exp(part[0] - top);
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
