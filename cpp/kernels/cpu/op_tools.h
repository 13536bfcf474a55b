#pragma once

#include "kernels/cpu/activation_tile.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/ops.h"

namespace slipstream::SLIPSTREAM_ISA {

SLIPSTREAM_INLINE float* at(const Step& step, Ref ref, std::ptrdiff_t row) {
    const Rows& rows = step.rows[ref.buffer];
    return rows.data + row * rows.ld + ref.column;
}

SLIPSTREAM_INLINE int padded(int columns) { return (columns + 31) / 32 * 32; }

struct TileSlot {
    std::int32_t* words;  // group 0
    int size, slot;
};

SLIPSTREAM_INLINE std::int32_t* tile_words(const Step& step, int tiles, Domain domain, int tile, int thread) {
    const Tiles& t = step.tiles[tiles];
    const std::ptrdiff_t start = step.tiling[domain].start[tile];
    return t.data + t.copy_words * thread + start * t.groups * kTileWords;
}

SLIPSTREAM_INLINE TileSlot slot_of(const Step& step, int tiles, Domain domain, int row, int thread) {
    const Tiling& tiling = step.tiling[domain];
    const int tile = tiling.tile[row], first = tiling.start[tile];
    return {tile_words(step, tiles, domain, tile, thread), tiling.start[tile + 1] - first, row - first};
}

// Quantises `groups` groups of `v` into the slot, from group `first` on.
SLIPSTREAM_INLINE void quantize_row(const float* v, int first, int groups, TileSlot slot) {
    for (int g = 0; g < groups; ++g) {
        const F32x8 x[4] = {load(v + 32 * g), load(v + 32 * g + 8), load(v + 32 * g + 16), load(v + 32 * g + 24)};
        quantize_group(x, slot.words + static_cast<std::ptrdiff_t>(first + g) * kTileWords * slot.size, slot.size, slot.slot);
    }
}

// out = v / sqrt(mean(v^2) + eps) * weight over n columns; `span`, a multiple of 8, includes zero padding.
SLIPSTREAM_INLINE void rms_norm(const float* v, const float* weight, float eps, int n, int span, float* out) {
    F32x8 s0 = zero(), s1 = zero();
    int k = 0;
    for (; k + 16 <= span; k += 16) {
        const F32x8 a = load(v + k), b = load(v + k + 8);
        s0 = fma(a, a, s0);
        s1 = fma(b, b, s1);
    }
    for (; k < span; k += 8) s0 = fma(load(v + k), load(v + k), s0);
    const F32x8 factor = set(1.0f / sqrt(sum(add(s0, s1)) / static_cast<float>(n) + eps));
    for (k = 0; k < span; k += 8) store(out + k, mul(mul(load(v + k), factor), load(weight + k)));
}

// Rotates one head in place.
SLIPSTREAM_INLINE void rotate(float* x, const RopeTableView& table, int position) {
    const float* c = table.cos + static_cast<std::ptrdiff_t>(position) * table.pairs;
    const float* s = table.sin + static_cast<std::ptrdiff_t>(position) * table.pairs;
    const int n = table.pairs;
    if (table.interleaved) {
        for (int i = 0; i < n; ++i) {
            const float a = x[2 * i], b = x[2 * i + 1];
            x[2 * i] = a * c[i] - b * s[i];
            x[2 * i + 1] = b * c[i] + a * s[i];
        }
        return;
    }
    int i = 0;
    for (; i + 8 <= n; i += 8) {
        const F32x8 a = load(x + i), b = load(x + n + i), ci = load(c + i), si = load(s + i);
        store(x + i, sub(mul(a, ci), mul(b, si)));
        store(x + n + i, add(mul(b, ci), mul(a, si)));
    }
    for (; i < n; ++i) {
        const float a = x[i], b = x[n + i];
        x[i] = a * c[i] - b * s[i];
        x[n + i] = b * c[i] + a * s[i];
    }
}

SLIPSTREAM_INLINE F32x8 activate(Gate gate, F32x8 x) { return gate == Gate::Silu ? silu(x) : gelu_tanh(x); }

}  // namespace slipstream::SLIPSTREAM_ISA
