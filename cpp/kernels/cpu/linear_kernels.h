#pragma once

#include "kernels/cpu/activation_tile.h"
#include "kernels/cpu/matrix.h"
#include "simd/simd.h"

// Products of 16-row blocks with activation tiles. For every output the groups are summed in column order with the same
// operations, whatever the tile size or the number of blocks read side by side: variants agree bit for bit.

namespace slipstream::SLIPSTREAM_ISA {

// 32 weights of step J: rows 0-7 (H = 0) or 8-15 (H = 1).
template <int Bits, int J, int H>
SLIPSTREAM_INLINE U8x32 weights(const std::uint8_t* group) {
    if constexpr (Bits == 8) {
        return load_u8(group + J * 64 + H * 32);
    } else if constexpr (Bits < 4) {
        const U8x32 pairs = bit_pairs<2 * (J % 2) + H>(load_u8(group + J / 2 * 32));
        if constexpr (Bits == 2) return pairs;
        else return add_third_bits<J>(pairs, load_u8(group + 128 + H * 32));
    } else {
        const U8x32 packed = load_u8(group + J * 32);
        const U8x32 nibbles = H == 0 ? low_nibbles(packed) : high_nibbles(packed);
        if constexpr (Bits == 4) return nibbles;
        else if constexpr (Bits == 5) return add_high_bits<J, 16>(nibbles, load_u8(group + 256 + H * 32));
        else return add_high_bits<2 * (J % 4), 48>(nibbles, load_u8(group + 256 + H * 64 + J / 4 * 32));
    }
}

// How many steps' products an int16 holds without overflow, or half a group.
constexpr int steps_per_flush(int bits) { return bits < 4 ? 4 : bits == 4 ? 8 : bits == 5 ? 4 : bits == 6 ? 2 : 1; }

template <int Bits, int J, int Last, int T>
SLIPSTREAM_INLINE void steps(const std::uint8_t* group, const std::int32_t* a, I16x16 (&s)[2][T]) {
    const U8x32 w0 = weights<Bits, J, 0>(group), w1 = weights<Bits, J, 1>(group);
    constexpr bool first = J % steps_per_flush(Bits) == 0;
    SLIPSTREAM_UNROLL for (int t = 0; t < T; ++t) {
        const I32x8 x = set_i32(a[J * T + t]);
        const I16x16 p0 = maddubs(w0, x), p1 = maddubs(w1, x);
        if constexpr (first) {
            s[0][t] = p0;
            s[1][t] = p1;
        } else {
            s[0][t] = add_i16(s[0][t], p0);
            s[1][t] = add_i16(s[1][t], p1);
        }
        SLIPSTREAM_PIN(s[0][t]);
        SLIPSTREAM_PIN(s[1][t]);
    }
    if constexpr (J + 1 < Last) steps<Bits, J + 1, Last, T>(group, a, s);
}

template <int J, int First, int Last, int T>
SLIPSTREAM_INLINE void steps_i8(const std::uint8_t* group, const std::int32_t* a, I32x8 (&d)[2][T]) {
    const U8x32 w0 = weights<8, J, 0>(group), w1 = weights<8, J, 1>(group), m0 = abs_i8(w0), m1 = abs_i8(w1);
    SLIPSTREAM_UNROLL for (int t = 0; t < T; ++t) {
        const I32x8 x = set_i32(a[J * T + t]);
        const I32x8 p0 = pair_sums(maddubs(m0, sign_i8(x, w0))), p1 = pair_sums(maddubs(m1, sign_i8(x, w1)));
        d[0][t] = J == First ? p0 : add_i32(d[0][t], p0);
        d[1][t] = J == First ? p1 : add_i32(d[1][t], p1);
        SLIPSTREAM_PIN(d[0][t]);
        SLIPSTREAM_PIN(d[1][t]);
    }
    if constexpr (J + 1 < Last) steps_i8<J + 1, First, Last, T>(group, a, d);
}

// d[h][t] = sum over the steps First .. Last - 1 of quant * activation, exact.
template <int Bits, int First, int Last, int T, int At = First>
SLIPSTREAM_INLINE void dot(const std::uint8_t* group, const std::int32_t* a, I32x8 (&d)[2][T]) {
    if constexpr (Bits == 8) {
        steps_i8<First, First, Last, T>(group, a, d);
    } else {
        constexpr int stop = At + steps_per_flush(Bits) < Last ? At + steps_per_flush(Bits) : Last;
        I16x16 s[2][T];
        steps<Bits, At, stop, T>(group, a, s);
        SLIPSTREAM_UNROLL for (int t = 0; t < T; ++t) {
            d[0][t] = At == First ? pair_sums(s[0][t]) : add_i32(d[0][t], pair_sums(s[0][t]));
            d[1][t] = At == First ? pair_sums(s[1][t]) : add_i32(d[1][t], pair_sums(s[1][t]));
        }
        if constexpr (stop < Last) dot<Bits, First, Last, T, stop>(group, a, d);
    }
}

template <Format F>
SLIPSTREAM_INLINE F32x8 group_scale(const std::uint8_t* scales, const std::uint8_t* header, int half, int h) {
    constexpr Layout l = layout_of(F);
    if constexpr (l.span == kWholeSpan) return load(reinterpret_cast<const float*>(header) + 8 * h);
    else if constexpr (!l.nested) return load_f16(reinterpret_cast<const std::uint16_t*>((l.span == 1 ? scales : header) + 16 * h));
    else {
        const F32x8 super = load_f16(reinterpret_cast<const std::uint16_t*>(header + 16 * h));
        const std::uint8_t* bytes = scales + 16 * half + 8 * h;
        if constexpr (l.half_groups && l.minima) return mul(super, to_f32(low_nibbles_i32(load_u8_i32(bytes))));
        else return mul(super, to_f32(l.half_groups ? load_i8_i32(bytes) : load_u8_i32(bytes)));
    }
}

template <Format F>
SLIPSTREAM_INLINE F32x8 group_minimum(const std::uint8_t* scales, const std::uint8_t* header, int half, int h) {
    constexpr Layout l = layout_of(F);
    if constexpr (!l.nested) return load_f16(reinterpret_cast<const std::uint16_t*>((l.span == 1 ? scales : header) + 32 + 16 * h));
    else {
        const F32x8 super = load_f16(reinterpret_cast<const std::uint16_t*>(header + 32 + 16 * h));
        if constexpr (l.half_groups) return mul(super, to_f32(high_nibbles_i32(load_u8_i32(scales + 16 * half + 8 * h))));
        else return mul(super, to_f32(load_u8_i32(scales + 16 + 8 * h)));
    }
}

// acc[h][t] += one group of one block. Each output's sum is finished in one go, so that the other sums stay in registers.
template <Format F, int T, int Half = 0>
SLIPSTREAM_INLINE void add_group(const std::uint8_t* group, const std::uint8_t* header, const std::int32_t* a,
                                 F32x8 (&acc)[2][T]) {
    constexpr Layout l = layout_of(F);
    constexpr int first = l.half_groups ? 4 * Half : 0, last = l.half_groups ? first + 4 : 8;
    constexpr bool pairs = l.bits != 8 && steps_per_flush(l.bits) >= last - first;  // still int16, to be added
    I16x16 s[2][T];
    I32x8 d[2][T], fix[T];
    if constexpr (pairs) steps<l.bits, first, last, T>(group, a, s);
    else dot<l.bits, first, last, T>(group, a, d);
    if constexpr (!l.minima && l.bits != 8) {
        // The offset of the unsigned quants, as an exact integer correction by the activations' sums.
        constexpr std::uint32_t offset = static_cast<std::uint32_t>(-(1 << (l.bits - 1))) & 0xffffU;
        constexpr std::uint32_t pair = !l.half_groups ? offset | (offset << 16) : Half == 0 ? offset : offset << 16;
        SLIPSTREAM_UNROLL for (int t = 0; t < T; ++t) fix[t] = madd_i16(set_i32(a[10 * T + t]), set_i32(static_cast<std::int32_t>(pair)));
    }
    const std::uint8_t* scales = group + quant_bytes(l);
    const float* token = reinterpret_cast<const float*>(a + 8 * T);
    SLIPSTREAM_UNROLL for (int h = 0; h < 2; ++h) {
        const F32x8 scale = group_scale<F>(scales, header, Half, h);
        F32x8 minimum = zero();
        if constexpr (l.minima) minimum = group_minimum<F>(scales, header, Half, h);
        SLIPSTREAM_UNROLL for (int t = 0; t < T; ++t) {
            if constexpr (pairs) d[h][t] = pair_sums(s[h][t]);
            if constexpr (!l.minima && l.bits != 8) d[h][t] = add_i32(d[h][t], fix[t]);
            acc[h][t] = fma(mul(scale, set(token[t])), to_f32(d[h][t]), acc[h][t]);
            if constexpr (l.minima) {
                float sum = token[T + t];
                if constexpr (l.half_groups) sum = token[t] * static_cast<float>(static_cast<std::int16_t>(a[10 * T + t] >> (16 * Half)));
                acc[h][t] = fma(minimum, set(sum), acc[h][t]);
            }
            SLIPSTREAM_PIN(acc[h][t]);
        }
    }
    if constexpr (l.half_groups && Half == 0) add_group<F, T, 1>(group, header, a, acc);
}

// One block times one tile. out [T][ldo]: 16 numbers per token.
template <Format F, int T, bool Prefetch>
SLIPSTREAM_KERNEL void block_times_tile(const std::uint8_t* block, const std::int32_t* a, int groups, float* out, int ldo) {
    constexpr Layout l = layout_of(F);
    F32x8 acc[2][T];
    SLIPSTREAM_UNROLL for (int t = 0; t < T; ++t) acc[0][t] = acc[1][t] = zero();
    const std::uint8_t* header = block;
    for (int g = 0; g < groups; ++g) {
        if (l.span != 1 && g % l.span == 0) {
            header = block;
            block += header_bytes(l);
        }
        if constexpr (Prefetch) {
            for (int line = 0; line < group_bytes(l); line += 64) prefetch(block + 2048 + line);
        }
        add_group<F, T>(block, header, a, acc);
        block += group_bytes(l);
        a += kTileWords * T;
    }
    SLIPSTREAM_UNROLL for (int t = 0; t < T; ++t) {
        store(out + static_cast<std::ptrdiff_t>(t) * ldo, acc[0][t]);
        store(out + static_cast<std::ptrdiff_t>(t) * ldo + 8, acc[1][t]);
    }
}

// S blocks times one tile: several far-apart streams read memory faster than one. out [S][T][16].
template <Format F, int S, int T>
SLIPSTREAM_KERNEL void blocks_times_tile(const std::uint8_t* const* blocks, const std::int32_t* a, int groups, float* out) {
    constexpr Layout l = layout_of(F);
    F32x8 acc[S][2][T];
    const std::uint8_t* base[S];
    SLIPSTREAM_UNROLL for (int s = 0; s < S; ++s) {
        SLIPSTREAM_UNROLL for (int t = 0; t < T; ++t) acc[s][0][t] = acc[s][1][t] = zero();
        base[s] = blocks[s];
    }
    std::ptrdiff_t header = 0, group = 0;
    for (int g = 0; g < groups; ++g) {
        if (l.span != 1 && g % l.span == 0) {
            header = group;
            group += header_bytes(l);
        }
        if constexpr (T > 1) {
            SLIPSTREAM_UNROLL for (int s = 0; s < S; ++s) {
                for (int line = 0; line < group_bytes(l); line += 64) prefetch(base[s] + group + 2048 + line);
            }
        }
        SLIPSTREAM_UNROLL for (int s = 0; s < S; ++s) add_group<F, T>(base[s] + group, base[s] + header, a, acc[s]);
        group += group_bytes(l);
        a += kTileWords * T;
    }
    SLIPSTREAM_UNROLL for (int s = 0; s < S; ++s) {
        SLIPSTREAM_UNROLL for (int t = 0; t < T; ++t) {
            store(out + 16 * (s * T + t), acc[s][0][t]);
            store(out + 16 * (s * T + t) + 8, acc[s][1][t]);
        }
    }
}

template <Format F>
SLIPSTREAM_INLINE F32x8 load_dense(const std::uint8_t* p, int i) {
    if constexpr (F == Format::F32) return load(reinterpret_cast<const float*>(p) + i);
    else if constexpr (F == Format::F16) return load_f16(reinterpret_cast<const std::uint16_t*>(p) + i);
    else return load_bf16(reinterpret_cast<const std::uint16_t*>(p) + i);
}

// One dense block times T tokens of float32 activations x [T][ldx]; columns are summed one after another.
template <Format F, int T>
SLIPSTREAM_KERNEL void dense_block(const std::uint8_t* block, const float* x, std::ptrdiff_t ldx, std::int64_t cols,
                                   float* out, int ldo) {
    F32x8 acc[2][T];
    SLIPSTREAM_UNROLL for (int t = 0; t < T; ++t) acc[0][t] = acc[1][t] = zero();
    for (std::int64_t k = 0; k < cols; ++k) {
        const F32x8 w0 = load_dense<F>(block, 0), w1 = load_dense<F>(block, 8);
        SLIPSTREAM_UNROLL for (int t = 0; t < T; ++t) {
            const F32x8 b = set(x[t * ldx + k]);
            acc[0][t] = fma(w0, b, acc[0][t]);
            acc[1][t] = fma(w1, b, acc[1][t]);
        }
        block += 16 * dense_bytes(F);
    }
    SLIPSTREAM_UNROLL for (int t = 0; t < T; ++t) {
        store(out + static_cast<std::ptrdiff_t>(t) * ldo, acc[0][t]);
        store(out + static_cast<std::ptrdiff_t>(t) * ldo + 8, acc[1][t]);
    }
}

}  // namespace slipstream::SLIPSTREAM_ISA
