#pragma once

#include <cstdint>
#include <cstring>

#include "simd/words.h"

// What sampling/functions.py and sampling/rng.py define, operation by operation: the same bits.

namespace slipstream::SLIPSTREAM_ISA {

constexpr int kSumLanes = 512;

SLIPSTREAM_INLINE std::int64_t bits_of(double x) {
    std::int64_t bits;
    std::memcpy(&bits, &x, 8);
    return bits;
}
SLIPSTREAM_INLINE double double_of(std::int64_t bits) {
    double x;
    std::memcpy(&x, &bits, 8);
    return x;
}

// x <= 0
SLIPSTREAM_INLINE double exp_double(double x) {
    const double y = x < -708.0 ? -708.0 : x;
    const double shifted = y * 1.4426950408889634 + 6755399441055744.0;
    const double n = shifted - 6755399441055744.0;
    const double r = (y - n * 0.6931471803691238) - n * 1.9082149292705877e-10;
    double p = 2.7620088445409746e-07;
    p = p * r + 2.763265575933203e-06;
    p = p * r + 2.4801521295954376e-05;
    p = p * r + 0.0001984119061583585;
    p = p * r + 0.0013888888917213717;
    p = p * r + 0.008333333367332009;
    p = p * r + 0.04166666666662413;
    p = p * r + 0.16666666666615607;
    p = p * r + 0.5000000000000001;
    p = p * r + 1.0000000000000013;
    p = p * r + 1.0;
    const std::uint64_t scaled = static_cast<std::uint64_t>(bits_of(p)) + (static_cast<std::uint64_t>(bits_of(shifted)) << 52);
    return x < -708.0 ? 0.0 : double_of(static_cast<std::int64_t>(scaled));
}

// Finite, normal x > 0.
SLIPSTREAM_KERNEL double log_double(double x) {
    const std::int64_t bits = bits_of(x);
    std::int64_t e = (bits >> 52) - 1022;
    double m = double_of((bits & 0xfffffffffffff) | 0x3fe0000000000000);
    if (m < 0.7071067811865476) {
        m = m + m;
        --e;
    }
    const double k = static_cast<double>(e), f = (m - 1.0) / (m + 1.0), z = f * f;
    static constexpr double terms[] = {1.0 / 23, 1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11, 1.0 / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3, 1.0};
    double p = terms[0];
    for (int i = 1; i < 12; ++i) p = p * z + terms[i];
    return k * 0.6931471803691238 + (k * 1.9082149292705877e-10 + (f + f) * p);
}

// `lanes` holds the sums of elements i % kSumLanes.
SLIPSTREAM_INLINE double fold(double* lanes) {
    for (int half = kSumLanes / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i) lanes[i] = lanes[i] + lanes[half + i];
    }
    return lanes[0];
}

struct NoiseKey {
    std::uint64_t seed, position;
};

// Philox4x32-10 of counters first .. first + 3, as the words of 16 tokens. Salmon et al., SC 2011.
SLIPSTREAM_INLINE void noise_words(NoiseKey key, std::uint32_t first, std::uint32_t* out) {
    Words4 c0 = counting_words(first), c1 = set_words(static_cast<std::uint32_t>(key.position));
    Words4 c2 = set_words(static_cast<std::uint32_t>(key.position >> 32)), c3 = set_words(0x47554d42);
    std::uint32_t k0 = static_cast<std::uint32_t>(key.seed), k1 = static_cast<std::uint32_t>(key.seed >> 32);
    const Words4 m0 = set_words(0xd2511f53), m1 = set_words(0xcd9e8d57);
    for (int round = 0; round < 10; ++round) {
        const Words4 p0 = multiply(c0, m0), p1 = multiply(c2, m1);
        c0 = exclusive_or(exclusive_or(high_words(p1), c1), set_words(k0));
        c2 = exclusive_or(exclusive_or(high_words(p0), c3), set_words(k1));
        c1 = p1;
        c3 = p0;
        k0 += 0x9e3779b9;
        k1 += 0xbb67ae85;
    }
    store_words(out, c0, c1, c2, c3);
}

SLIPSTREAM_INLINE double gumbel_of(std::uint32_t word) {
    return -log_double(-log_double((static_cast<double>(word) + 0.5) / 4294967296.0));
}

SLIPSTREAM_INLINE std::uint32_t noise_word(NoiseKey key, std::int32_t token) {
    std::uint32_t c[4] = {static_cast<std::uint32_t>(token) / 4, static_cast<std::uint32_t>(key.position),
                          static_cast<std::uint32_t>(key.position >> 32), 0x47554d42};
    std::uint32_t k0 = static_cast<std::uint32_t>(key.seed), k1 = static_cast<std::uint32_t>(key.seed >> 32);
    for (int round = 0; round < 10; ++round) {
        const std::uint64_t p0 = static_cast<std::uint64_t>(c[0]) * 0xd2511f53, p1 = static_cast<std::uint64_t>(c[2]) * 0xcd9e8d57;
        c[0] = static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k0;
        c[1] = static_cast<std::uint32_t>(p1);
        c[2] = static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k1;
        c[3] = static_cast<std::uint32_t>(p0);
        k0 += 0x9e3779b9;
        k1 += 0xbb67ae85;
    }
    return c[token % 4];
}

}  // namespace slipstream::SLIPSTREAM_ISA
