#pragma once

#include "kernels/cpu/ops.h"
#include "simd/simd.h"

namespace slipstream::SLIPSTREAM_ISA {

// Activations as the linear kernels read them. T tokens (at most kMaxTile) form a tile; per group of 32 columns a tile has
//   [8 steps][T] int32: 4 int8 each,  [T] float scale,  [T] float scale * sum,  [T] int16 pair: sums of columns 0-15, 16-31
// value = scale * int8; scale = max |x| / 127 over the token's group, NaN if one of them is not finite: so are its products.
constexpr int kMaxTile = kTileTokens;
constexpr int kTileWords = kTileGroupWords;  // int32 per token and group

// Quantises 32 numbers (four vectors) into slot t of a group of a tile of T tokens.
SLIPSTREAM_INLINE void quantize_group(const F32x8 (&v)[4], std::int32_t* group, int T, int t) {
    const float peak = largest_or_nan(max_or_nan(max_or_nan(abs(v[0]), abs(v[1])), max_or_nan(abs(v[2]), abs(v[3]))));
    const float scale = peak * (1.0f / 127.0f) + (peak - peak);
    const F32x8 inverse = set(peak > 1e-35f ? 127.0f / peak : 0.0f);
    const I32x8 a = to_i32(mul(v[0], inverse)), b = to_i32(mul(v[1], inverse));
    const I32x8 c = to_i32(mul(v[2], inverse)), d = to_i32(mul(v[3], inverse));
    const std::int32_t first = sum_i32(add_i32(a, b)), second = sum_i32(add_i32(c, d));
    store_i8(group + t, T, a, b, c, d);
    float* scales = reinterpret_cast<float*>(group + 8 * T);
    scales[t] = scale;
    scales[T + t] = scale * static_cast<float>(first + second);
    const std::uint32_t low = static_cast<std::uint32_t>(first) & 0xffffU;
    group[10 * T + t] = static_cast<std::int32_t>(low | (static_cast<std::uint32_t>(second) << 16));
}

}  // namespace slipstream::SLIPSTREAM_ISA
