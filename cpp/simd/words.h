#pragma once

// Four 32-bit words, each at the bottom of a 64-bit lane: what a counter-based generator multiplies. What stands above the
// low 32 bits of a lane is not read by `multiply`.

#include <cstdint>
#include <cstring>

#include "simd/simd.h"

namespace slipstream::SLIPSTREAM_ISA {

#if defined(__AVX2__)

using Words4 = __m256i;

SLIPSTREAM_INLINE Words4 set_words(std::uint32_t x) { return _mm256_set1_epi64x(x); }
SLIPSTREAM_INLINE Words4 counting_words(std::uint32_t first) {
    return _mm256_add_epi64(_mm256_set1_epi64x(first), _mm256_set_epi64x(3, 2, 1, 0));
}
SLIPSTREAM_INLINE Words4 multiply(Words4 a, Words4 b) { return _mm256_mul_epu32(a, b); }
SLIPSTREAM_INLINE Words4 high_words(Words4 x) { return _mm256_srli_epi64(x, 32); }
SLIPSTREAM_INLINE Words4 exclusive_or(Words4 a, Words4 b) { return _mm256_xor_si256(a, b); }
// out[4 i + j] = lane i of the j-th.
SLIPSTREAM_INLINE void store_words(std::uint32_t* out, Words4 a, Words4 b, Words4 c, Words4 d) {
    const __m256i ab = _mm256_blend_epi32(a, _mm256_slli_epi64(b, 32), 0xaa);
    const __m256i cd = _mm256_blend_epi32(c, _mm256_slli_epi64(d, 32), 0xaa);
    const __m256i even = _mm256_unpacklo_epi64(ab, cd), odd = _mm256_unpackhi_epi64(ab, cd);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_permute2x128_si256(even, odd, 0x20));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 8), _mm256_permute2x128_si256(even, odd, 0x31));
}
// (2^31 - 1 - x / 2) * 2^-31, a little below 1 - x / 2^32.
SLIPSTREAM_INLINE F32x8 rest_of_unit(const std::uint32_t* x) {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
    const __m256i rest = _mm256_srli_epi32(_mm256_xor_si256(words, _mm256_set1_epi32(-1)), 1);
    return _mm256_mul_ps(_mm256_cvtepi32_ps(rest), _mm256_set1_ps(0x1p-31f));
}
// Bit i: lane i of a >= that of b.
SLIPSTREAM_INLINE int not_less(F32x8 a, F32x8 b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ)); }
// Bit i: lane i is NaN.
SLIPSTREAM_INLINE int not_a_number(F32x8 a) { return _mm256_movemask_ps(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)); }

#else

struct Words4 {
    std::uint64_t lane[4];
};

SLIPSTREAM_INLINE Words4 set_words(std::uint32_t x) { return {{x, x, x, x}}; }
SLIPSTREAM_INLINE Words4 counting_words(std::uint32_t first) {
    const std::uint64_t x = first;
    return {{x, x + 1, x + 2, x + 3}};
}
SLIPSTREAM_INLINE Words4 multiply(Words4 a, Words4 b) {
    for (int i = 0; i < 4; ++i) a.lane[i] = (a.lane[i] & 0xffffffffU) * (b.lane[i] & 0xffffffffU);
    return a;
}
SLIPSTREAM_INLINE Words4 high_words(Words4 x) {
    for (int i = 0; i < 4; ++i) x.lane[i] >>= 32;
    return x;
}
SLIPSTREAM_INLINE Words4 exclusive_or(Words4 a, Words4 b) {
    for (int i = 0; i < 4; ++i) a.lane[i] ^= b.lane[i];
    return a;
}
SLIPSTREAM_INLINE void store_words(std::uint32_t* out, Words4 a, Words4 b, Words4 c, Words4 d) {
    for (int i = 0; i < 4; ++i) {
        out[4 * i] = static_cast<std::uint32_t>(a.lane[i]);
        out[4 * i + 1] = static_cast<std::uint32_t>(b.lane[i]);
        out[4 * i + 2] = static_cast<std::uint32_t>(c.lane[i]);
        out[4 * i + 3] = static_cast<std::uint32_t>(d.lane[i]);
    }
}
SLIPSTREAM_INLINE F32x8 rest_of_unit(const std::uint32_t* x) {
    return lanes([&](int i) { return static_cast<float>(static_cast<std::int32_t>(~x[i] >> 1)) * 0x1p-31f; });
}
SLIPSTREAM_INLINE int not_less(F32x8 a, F32x8 b) {
    int bits = 0;
    for (int i = 0; i < 8; ++i) bits |= (a.lane[i] >= b.lane[i] ? 1 : 0) << i;
    return bits;
}
SLIPSTREAM_INLINE int not_a_number(F32x8 a) {
    int bits = 0;
    for (int i = 0; i < 8; ++i) bits |= (a.lane[i] != a.lane[i] ? 1 : 0) << i;
    return bits;
}

#endif

}  // namespace slipstream::SLIPSTREAM_ISA
