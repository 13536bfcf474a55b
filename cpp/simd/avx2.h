#pragma once

// The vector vocabulary on AVX2 + FMA + F16C. Lane for lane the same results as simd/scalar.h.

#include <immintrin.h>

#include <cstdint>

namespace slipstream::SLIPSTREAM_ISA {

using F32x8 = __m256;
using I32x8 = __m256i;
using I16x16 = __m256i;
using U8x32 = __m256i;

// Keeps an accumulator in a register. Without it compilers reorder the unrolled loops and spill every product (1.8x).
#define SLIPSTREAM_PIN(x) __asm__ volatile("" : "+x"(x))
#define SLIPSTREAM_INLINE static inline __attribute__((always_inline))

SLIPSTREAM_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

SLIPSTREAM_INLINE F32x8 zero() { return _mm256_setzero_ps(); }
SLIPSTREAM_INLINE F32x8 set(float x) { return _mm256_set1_ps(x); }
SLIPSTREAM_INLINE F32x8 load(const float* p) { return _mm256_loadu_ps(p); }
SLIPSTREAM_INLINE void store(float* p, F32x8 x) { _mm256_storeu_ps(p, x); }
SLIPSTREAM_INLINE F32x8 load_f16(const std::uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
SLIPSTREAM_INLINE void store_f16(std::uint16_t* p, F32x8 x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
SLIPSTREAM_INLINE F32x8 load_bf16(const std::uint16_t* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
SLIPSTREAM_INLINE F32x8 add(F32x8 a, F32x8 b) { return _mm256_add_ps(a, b); }
SLIPSTREAM_INLINE F32x8 sub(F32x8 a, F32x8 b) { return _mm256_sub_ps(a, b); }
SLIPSTREAM_INLINE F32x8 mul(F32x8 a, F32x8 b) { return _mm256_mul_ps(a, b); }
SLIPSTREAM_INLINE F32x8 div(F32x8 a, F32x8 b) { return _mm256_div_ps(a, b); }
SLIPSTREAM_INLINE F32x8 fma(F32x8 a, F32x8 b, F32x8 c) { return _mm256_fmadd_ps(a, b, c); }
SLIPSTREAM_INLINE F32x8 max(F32x8 a, F32x8 b) { return _mm256_max_ps(a, b); }
SLIPSTREAM_INLINE F32x8 min(F32x8 a, F32x8 b) { return _mm256_min_ps(a, b); }
SLIPSTREAM_INLINE F32x8 abs(F32x8 x) { return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff))); }
// a < b ? x : y, lane by lane.
SLIPSTREAM_INLINE F32x8 select_less(F32x8 a, F32x8 b, F32x8 x, F32x8 y) {
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
SLIPSTREAM_INLINE F32x8 round_even(F32x8 x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// x * 2^n for whole n with a normal result.
SLIPSTREAM_INLINE F32x8 times_pow2(F32x8 x, F32x8 n) {
    const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), exponent));
}
SLIPSTREAM_INLINE float sum(F32x8 v) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps(x, x, 1)));
}
SLIPSTREAM_INLINE float largest(F32x8 v) {
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps(x, x, 1)));
}
// Of numbers without a sign, whose bits are in their own order; NaN is above all.
SLIPSTREAM_INLINE F32x8 max_or_nan(F32x8 a, F32x8 b) {
    return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b)));
}
SLIPSTREAM_INLINE float largest_or_nan(F32x8 v) {
    const __m256i bits = _mm256_castps_si256(v);
    __m128i x = _mm_max_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
    x = _mm_max_epi32(x, _mm_shuffle_epi32(x, 0x4e));
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_max_epi32(x, _mm_shuffle_epi32(x, 0xb1))));
}
SLIPSTREAM_INLINE float sqrt(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }
SLIPSTREAM_INLINE float to_float(std::uint16_t half) { return _cvtsh_ss(half); }
SLIPSTREAM_INLINE std::uint16_t to_f16(float x) { return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT); }

SLIPSTREAM_INLINE F32x8 to_f32(I32x8 x) { return _mm256_cvtepi32_ps(x); }
SLIPSTREAM_INLINE I32x8 to_i32(F32x8 x) { return _mm256_cvtps_epi32(x); }
SLIPSTREAM_INLINE I32x8 set_i32(std::int32_t x) { return _mm256_set1_epi32(x); }
SLIPSTREAM_INLINE I32x8 add_i32(I32x8 a, I32x8 b) { return _mm256_add_epi32(a, b); }
SLIPSTREAM_INLINE I32x8 load_u8_i32(const std::uint8_t* p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
SLIPSTREAM_INLINE I32x8 low_nibbles_i32(I32x8 x) { return _mm256_and_si256(x, _mm256_set1_epi32(15)); }
SLIPSTREAM_INLINE I32x8 high_nibbles_i32(I32x8 x) { return _mm256_srli_epi32(x, 4); }
SLIPSTREAM_INLINE I32x8 load_i8_i32(const std::uint8_t* p) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}

SLIPSTREAM_INLINE U8x32 load_u8(const std::uint8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
SLIPSTREAM_INLINE U8x32 xor_u8(U8x32 a, U8x32 b) { return _mm256_xor_si256(a, b); }
SLIPSTREAM_INLINE U8x32 low_nibbles(U8x32 x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
SLIPSTREAM_INLINE U8x32 high_nibbles(U8x32 x) {
    return _mm256_and_si256(_mm256_srli_epi16(x, 4), _mm256_set1_epi8(15));
}
// Bits 2 i and 2 i + 1 of every byte.
template <int I>
SLIPSTREAM_INLINE U8x32 bit_pairs(U8x32 x) {
    return _mm256_and_si256(_mm256_srli_epi16(x, 2 * I), _mm256_set1_epi8(3));
}
// pairs | (bit `from` of `high`, moved to bit 2).
template <int From>
SLIPSTREAM_INLINE U8x32 add_third_bits(U8x32 pairs, U8x32 high) {
    U8x32 moved;
    if constexpr (From <= 2) moved = _mm256_slli_epi16(high, 2 - From);
    else moved = _mm256_srli_epi16(high, From - 2);
    return _mm256_or_si256(pairs, _mm256_and_si256(moved, _mm256_set1_epi8(4)));
}
// nibbles | (bits of `high` that begin at bit `from`, moved to bit 4, under `mask`); 0 <= from < 8.
template <int From, int Mask>
SLIPSTREAM_INLINE U8x32 add_high_bits(U8x32 nibbles, U8x32 high) {
    U8x32 moved;
    if constexpr (From <= 4) moved = _mm256_slli_epi16(high, 4 - From);
    else moved = _mm256_srli_epi16(high, From - 4);
    return _mm256_or_si256(nibbles, _mm256_and_si256(moved, _mm256_set1_epi8(Mask)));
}
// u8 times the signed bytes of `x`, neighbours added: 16 sums, which must fit in int16.
SLIPSTREAM_INLINE I16x16 maddubs(U8x32 w, I32x8 x) { return _mm256_maddubs_epi16(w, x); }
SLIPSTREAM_INLINE U8x32 abs_i8(U8x32 x) { return _mm256_abs_epi8(x); }
SLIPSTREAM_INLINE I32x8 sign_i8(I32x8 x, U8x32 sign) { return _mm256_sign_epi8(x, sign); }
SLIPSTREAM_INLINE I16x16 add_i16(I16x16 a, I16x16 b) { return _mm256_add_epi16(a, b); }
// Neighbours added: 8 int32.
SLIPSTREAM_INLINE I32x8 pair_sums(I16x16 x) { return _mm256_madd_epi16(x, _mm256_set1_epi16(1)); }
// Products of int16 pairs, added: 8 int32.
SLIPSTREAM_INLINE I32x8 madd_i16(I32x8 a, I32x8 b) { return _mm256_madd_epi16(a, b); }

// 32 int32 in -127..127 (four vectors) to 32 bytes in order.
SLIPSTREAM_INLINE void store_i8(std::int32_t* p, int stride, I32x8 a, I32x8 b, I32x8 c, I32x8 d) {
    __m256i q = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    q = _mm256_permutevar8x32_epi32(q, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    const __m128i lo = _mm256_castsi256_si128(q), hi = _mm256_extracti128_si256(q, 1);
    p[0] = _mm_extract_epi32(lo, 0);
    p[stride] = _mm_extract_epi32(lo, 1);
    p[2 * stride] = _mm_extract_epi32(lo, 2);
    p[3 * stride] = _mm_extract_epi32(lo, 3);
    p[4 * stride] = _mm_extract_epi32(hi, 0);
    p[5 * stride] = _mm_extract_epi32(hi, 1);
    p[6 * stride] = _mm_extract_epi32(hi, 2);
    p[7 * stride] = _mm_extract_epi32(hi, 3);
}
SLIPSTREAM_INLINE std::int32_t sum_i32(I32x8 x) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

}  // namespace slipstream::SLIPSTREAM_ISA
