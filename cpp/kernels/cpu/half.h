#pragma once

#include <cstdint>
#include <cstring>

namespace slipstream {

inline float float_from_bits(std::uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

inline float half_to_float(std::uint16_t half) {
    const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16, exponent = (half >> 10) & 31U;
    const std::uint32_t fraction = half & 1023U;
    if (exponent == 31) return float_from_bits(sign | 0x7f800000U | (fraction << 13));
    if (exponent != 0) return float_from_bits(sign | ((exponent + 112) << 23) | (fraction << 13));
    const float subnormal = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -subnormal : subnormal;
}

inline float bfloat_to_float(std::uint16_t bits) { return float_from_bits(static_cast<std::uint32_t>(bits) << 16); }

}  // namespace slipstream
