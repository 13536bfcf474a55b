#pragma once

// The vector vocabulary in plain C++: lane for lane what simd/avx2.h computes, on any processor.

#include <cmath>
#include <cstdint>
#include <cstring>

namespace slipstream::SLIPSTREAM_ISA {

struct F32x8 {
    float lane[8];
};
struct I32x8 {
    std::int32_t lane[8];
};
struct I16x16 {
    std::int16_t lane[16];
};
struct U8x32 {
    std::uint8_t lane[32];
};

#define SLIPSTREAM_PIN(x) static_cast<void>(x)
#define SLIPSTREAM_INLINE static inline __attribute__((unused))

SLIPSTREAM_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }

template <class F>
SLIPSTREAM_INLINE F32x8 lanes(F f) {
    F32x8 r;
    for (int i = 0; i < 8; ++i) r.lane[i] = f(i);
    return r;
}
template <class F>
SLIPSTREAM_INLINE I32x8 lanes_i32(F f) {
    I32x8 r;
    for (int i = 0; i < 8; ++i) r.lane[i] = f(i);
    return r;
}

SLIPSTREAM_INLINE float from_bits(std::uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}
SLIPSTREAM_INLINE std::uint32_t to_bits(float x) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}

SLIPSTREAM_INLINE float to_float(std::uint16_t half) {
    const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16, exponent = (half >> 10) & 31U;
    const std::uint32_t fraction = half & 1023U;
    if (exponent == 31) return from_bits(sign | 0x7f800000U | (fraction << 13));
    if (exponent != 0) return from_bits(sign | ((exponent + 112) << 23) | (fraction << 13));
    const float subnormal = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -subnormal : subnormal;
}
// Round to nearest, ties to even.
SLIPSTREAM_INLINE std::uint16_t to_f16(float x) {
    const std::uint32_t bits = to_bits(x), sign = (bits >> 16) & 0x8000U, magnitude = bits & 0x7fffffffU;
    if (magnitude > 0x7f800000U) return static_cast<std::uint16_t>(sign | 0x7e00U | ((magnitude >> 13) & 0x3ffU));
    if (magnitude >= 0x477ff000U) return static_cast<std::uint16_t>(sign | 0x7c00U);
    if (magnitude < 0x38800000U) {
        // Adding 0.5 leaves the subnormal's bits, rounded to nearest even, at the bottom of the sum's fraction.
        const float shifted = from_bits(magnitude) + 0.5f;
        return static_cast<std::uint16_t>(sign | (to_bits(shifted) - 0x3f000000U));
    }
    const std::uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13) & 1U);
    return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000U) >> 13));
}

SLIPSTREAM_INLINE F32x8 zero() {
    return lanes([](int) { return 0.0f; });
}
SLIPSTREAM_INLINE F32x8 set(float x) {
    return lanes([&](int) { return x; });
}
SLIPSTREAM_INLINE F32x8 load(const float* p) {
    return lanes([&](int i) { return p[i]; });
}
SLIPSTREAM_INLINE void store(float* p, F32x8 x) {
    for (int i = 0; i < 8; ++i) p[i] = x.lane[i];
}
SLIPSTREAM_INLINE F32x8 load_f16(const std::uint16_t* p) {
    return lanes([&](int i) { return to_float(p[i]); });
}
SLIPSTREAM_INLINE void store_f16(std::uint16_t* p, F32x8 x) {
    for (int i = 0; i < 8; ++i) p[i] = to_f16(x.lane[i]);
}
SLIPSTREAM_INLINE F32x8 load_bf16(const std::uint16_t* p) {
    return lanes([&](int i) { return from_bits(static_cast<std::uint32_t>(p[i]) << 16); });
}
SLIPSTREAM_INLINE F32x8 add(F32x8 a, F32x8 b) {
    return lanes([&](int i) { return a.lane[i] + b.lane[i]; });
}
SLIPSTREAM_INLINE F32x8 sub(F32x8 a, F32x8 b) {
    return lanes([&](int i) { return a.lane[i] - b.lane[i]; });
}
SLIPSTREAM_INLINE F32x8 mul(F32x8 a, F32x8 b) {
    return lanes([&](int i) { return a.lane[i] * b.lane[i]; });
}
SLIPSTREAM_INLINE F32x8 div(F32x8 a, F32x8 b) {
    return lanes([&](int i) { return a.lane[i] / b.lane[i]; });
}
SLIPSTREAM_INLINE F32x8 fma(F32x8 a, F32x8 b, F32x8 c) {
    return lanes([&](int i) { return __builtin_fmaf(a.lane[i], b.lane[i], c.lane[i]); });
}
SLIPSTREAM_INLINE F32x8 max(F32x8 a, F32x8 b) {
    return lanes([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
}
SLIPSTREAM_INLINE F32x8 min(F32x8 a, F32x8 b) {
    return lanes([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
}
SLIPSTREAM_INLINE F32x8 abs(F32x8 x) {
    return lanes([&](int i) { return from_bits(to_bits(x.lane[i]) & 0x7fffffffU); });
}
SLIPSTREAM_INLINE F32x8 select_less(F32x8 a, F32x8 b, F32x8 x, F32x8 y) {
    return lanes([&](int i) { return a.lane[i] < b.lane[i] ? x.lane[i] : y.lane[i]; });
}
SLIPSTREAM_INLINE std::int32_t nearest(float x) { return static_cast<std::int32_t>(__builtin_lrintf(x)); }
SLIPSTREAM_INLINE F32x8 round_even(F32x8 x) {
    return lanes([&](int i) { return static_cast<float>(nearest(x.lane[i])); });
}
SLIPSTREAM_INLINE F32x8 times_pow2(F32x8 x, F32x8 n) {
    return lanes([&](int i) {
        return from_bits(to_bits(x.lane[i]) + (static_cast<std::uint32_t>(nearest(n.lane[i])) << 23));
    });
}
SLIPSTREAM_INLINE float sum(F32x8 v) {
    float s[4];
    for (int i = 0; i < 4; ++i) s[i] = v.lane[i] + v.lane[i + 4];
    return (s[0] + s[2]) + (s[1] + s[3]);
}
SLIPSTREAM_INLINE float largest(F32x8 v) {
    float m = v.lane[0];
    for (int i = 1; i < 8; ++i) m = m > v.lane[i] ? m : v.lane[i];
    return m;
}
// Of numbers without a sign, whose bits are in their own order; NaN is above all.
SLIPSTREAM_INLINE F32x8 max_or_nan(F32x8 a, F32x8 b) {
    return lanes([&](int i) { return to_bits(a.lane[i]) > to_bits(b.lane[i]) ? a.lane[i] : b.lane[i]; });
}
SLIPSTREAM_INLINE float largest_or_nan(F32x8 v) {
    float m = v.lane[0];
    for (int i = 1; i < 8; ++i) m = to_bits(m) > to_bits(v.lane[i]) ? m : v.lane[i];
    return m;
}
SLIPSTREAM_INLINE float sqrt(float x) { return __builtin_sqrtf(x); }

SLIPSTREAM_INLINE F32x8 to_f32(I32x8 x) {
    return lanes([&](int i) { return static_cast<float>(x.lane[i]); });
}
SLIPSTREAM_INLINE I32x8 to_i32(F32x8 x) {
    return lanes_i32([&](int i) { return nearest(x.lane[i]); });
}
SLIPSTREAM_INLINE I32x8 set_i32(std::int32_t x) {
    return lanes_i32([&](int) { return x; });
}
SLIPSTREAM_INLINE I32x8 add_i32(I32x8 a, I32x8 b) {
    return lanes_i32([&](int i) { return a.lane[i] + b.lane[i]; });
}
SLIPSTREAM_INLINE I32x8 load_u8_i32(const std::uint8_t* p) {
    return lanes_i32([&](int i) { return static_cast<std::int32_t>(p[i]); });
}
SLIPSTREAM_INLINE I32x8 low_nibbles_i32(I32x8 x) {
    return lanes_i32([&](int i) { return x.lane[i] & 15; });
}
SLIPSTREAM_INLINE I32x8 high_nibbles_i32(I32x8 x) {
    return lanes_i32([&](int i) { return x.lane[i] >> 4; });
}
SLIPSTREAM_INLINE I32x8 load_i8_i32(const std::uint8_t* p) {
    return lanes_i32([&](int i) { return static_cast<std::int32_t>(static_cast<std::int8_t>(p[i])); });
}

SLIPSTREAM_INLINE U8x32 load_u8(const std::uint8_t* p) {
    U8x32 r;
    std::memcpy(r.lane, p, 32);
    return r;
}
SLIPSTREAM_INLINE U8x32 low_nibbles(U8x32 x) {
    for (int i = 0; i < 32; ++i) x.lane[i] &= 15;
    return x;
}
SLIPSTREAM_INLINE U8x32 high_nibbles(U8x32 x) {
    for (int i = 0; i < 32; ++i) x.lane[i] >>= 4;
    return x;
}
template <int I>
SLIPSTREAM_INLINE U8x32 bit_pairs(U8x32 x) {
    for (int i = 0; i < 32; ++i) x.lane[i] = static_cast<std::uint8_t>(x.lane[i] >> (2 * I) & 3);
    return x;
}
template <int From>
SLIPSTREAM_INLINE U8x32 add_third_bits(U8x32 pairs, U8x32 high) {
    for (int i = 0; i < 32; ++i) pairs.lane[i] = static_cast<std::uint8_t>(pairs.lane[i] | (((high.lane[i] >> From) & 1) << 2));
    return pairs;
}
template <int From, int Mask>
SLIPSTREAM_INLINE U8x32 add_high_bits(U8x32 nibbles, U8x32 high) {
    for (int i = 0; i < 32; ++i) {
        nibbles.lane[i] = static_cast<std::uint8_t>(nibbles.lane[i] | (((high.lane[i] >> From) << 4) & Mask));
    }
    return nibbles;
}
// The bytes of `x` in memory order; activations are written as bytes, so this holds for either byte order.
SLIPSTREAM_INLINE std::int8_t byte_of(const I32x8& x, int i) {
    return static_cast<std::int8_t>(reinterpret_cast<const char*>(x.lane)[i]);
}
SLIPSTREAM_INLINE I16x16 maddubs(U8x32 w, I32x8 x) {
    I16x16 r;
    for (int i = 0; i < 16; ++i) {
        r.lane[i] = static_cast<std::int16_t>(w.lane[2 * i] * byte_of(x, 2 * i) + w.lane[2 * i + 1] * byte_of(x, 2 * i + 1));
    }
    return r;
}
SLIPSTREAM_INLINE U8x32 abs_i8(U8x32 x) {
    for (int i = 0; i < 32; ++i) x.lane[i] = static_cast<std::uint8_t>(x.lane[i] < 128 ? x.lane[i] : 256 - x.lane[i]);
    return x;
}
SLIPSTREAM_INLINE I32x8 sign_i8(I32x8 x, U8x32 sign) {
    char bytes[32];
    for (int i = 0; i < 32; ++i) {
        const int b = byte_of(x, i);
        bytes[i] = static_cast<char>(sign.lane[i] == 0 ? 0 : sign.lane[i] < 128 ? b : -b);
    }
    std::memcpy(x.lane, bytes, 32);
    return x;
}
SLIPSTREAM_INLINE U8x32 xor_u8(U8x32 a, U8x32 b) {
    for (int i = 0; i < 32; ++i) a.lane[i] = static_cast<std::uint8_t>(a.lane[i] ^ b.lane[i]);
    return a;
}
SLIPSTREAM_INLINE I16x16 add_i16(I16x16 a, I16x16 b) {
    for (int i = 0; i < 16; ++i) a.lane[i] = static_cast<std::int16_t>(a.lane[i] + b.lane[i]);
    return a;
}
SLIPSTREAM_INLINE I32x8 pair_sums(I16x16 x) {
    return lanes_i32([&](int i) { return x.lane[2 * i] + x.lane[2 * i + 1]; });
}
SLIPSTREAM_INLINE std::int32_t half_of(std::int32_t x, int i) {
    std::int16_t halves[2];
    std::memcpy(halves, &x, 4);
    return halves[i];
}
SLIPSTREAM_INLINE I32x8 madd_i16(I32x8 a, I32x8 b) {
    return lanes_i32([&](int i) {
        return half_of(a.lane[i], 0) * half_of(b.lane[i], 0) + half_of(a.lane[i], 1) * half_of(b.lane[i], 1);
    });
}
SLIPSTREAM_INLINE void store_i8(std::int32_t* p, int stride, I32x8 a, I32x8 b, I32x8 c, I32x8 d) {
    const I32x8* const parts[4] = {&a, &b, &c, &d};
    for (int i = 0; i < 8; ++i) {
        char bytes[4];
        for (int k = 0; k < 4; ++k) bytes[k] = static_cast<char>(parts[i / 2]->lane[(i % 2) * 4 + k]);
        std::memcpy(p + i * stride, bytes, 4);
    }
}
SLIPSTREAM_INLINE std::int32_t sum_i32(I32x8 x) {
    std::int32_t s = 0;
    for (int i = 0; i < 8; ++i) s += x.lane[i];
    return s;
}

}  // namespace slipstream::SLIPSTREAM_ISA
