#pragma once

#include "simd/simd.h"

// What one core can do at most: the multiply-add chains that the linear kernels are made of, without their loads, and reading
// memory in four far-apart streams.

namespace slipstream::SLIPSTREAM_ISA {

constexpr int kChains = 6;

// Multiply-adds done: 32 per maddubs and addition.
SLIPSTREAM_KERNEL std::int64_t spin_maddubs(std::int64_t rounds, float* sink) {
    std::uint8_t bytes[32];
    for (int i = 0; i < 32; ++i) bytes[i] = static_cast<std::uint8_t>(i & 15);
    const U8x32 w = load_u8(bytes);
    I32x8 x = set_i32(0x01020301);
    I16x16 acc[kChains];
    SLIPSTREAM_UNROLL for (int c = 0; c < kChains; ++c) acc[c] = maddubs(w, set_i32(0));
    for (std::int64_t i = 0; i < rounds; ++i) {
        SLIPSTREAM_UNROLL for (int c = 0; c < kChains; ++c) {
            SLIPSTREAM_PIN(x);
            acc[c] = add_i16(acc[c], maddubs(w, x));
            SLIPSTREAM_PIN(acc[c]);
        }
    }
    float all[8] = {};
    SLIPSTREAM_UNROLL for (int c = 0; c < kChains; ++c) {
        store(all, to_f32(pair_sums(acc[c])));
        *sink += all[0];
    }
    return rounds * kChains * 32;
}

SLIPSTREAM_KERNEL std::int64_t spin_fma(std::int64_t rounds, float* sink) {
    constexpr int chains = 12;
    F32x8 x = set(1.0f), acc[chains];
    SLIPSTREAM_UNROLL for (int c = 0; c < chains; ++c) acc[c] = zero();
    for (std::int64_t i = 0; i < rounds; ++i) {
        SLIPSTREAM_PIN(x);
        SLIPSTREAM_UNROLL for (int c = 0; c < chains; ++c) {
            acc[c] = fma(x, x, acc[c]);
            SLIPSTREAM_PIN(acc[c]);
        }
    }
    SLIPSTREAM_UNROLL for (int c = 0; c < chains; ++c) *sink += sum(acc[c]);
    return rounds * chains * 8;
}

// Reads `bytes`, a multiple of 1024, once.
SLIPSTREAM_KERNEL void read_streams(const std::uint8_t* p, std::int64_t bytes, float* sink) {
    const std::int64_t quarter = bytes / 4;
    U8x32 acc[4];
    for (int s = 0; s < 4; ++s) acc[s] = load_u8(p);
    for (std::int64_t i = 0; i < quarter; i += 256) {
        SLIPSTREAM_UNROLL for (int s = 0; s < 4; ++s) {
            SLIPSTREAM_UNROLL for (int k = 0; k < 256; k += 32) {
                acc[k / 32 % 4] = xor_u8(acc[k / 32 % 4], load_u8(p + s * quarter + i + k));
            }
        }
    }
    float all[8];
    for (int s = 0; s < 4; ++s) {
        store(all, to_f32(pair_sums(maddubs(acc[s], set_i32(0x01010101)))));
        *sink += all[0];
    }
}

}  // namespace slipstream::SLIPSTREAM_ISA
