#include "kernels/convert.h"

#include <cstring>

namespace slipstream {
namespace {

float from_bits(std::uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

std::uint32_t to_bits(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

// Branch-free so that the loop vectorises. A subnormal half is its mantissa times 2^-24: put the mantissa under the
// exponent of 0.5 and subtract 0.5, which is exact in fp32.
float half_to_float(std::uint16_t half) {
    const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
    const std::uint32_t magnitude = half & 0x7FFFU;
    const std::uint32_t normal = (magnitude << 13) + 0x38000000U;
    const std::uint32_t subnormal = to_bits(from_bits(magnitude | 0x3F000000U) - 0.5F);
    const std::uint32_t special = (magnitude << 13) | 0x7F800000U | (magnitude > 0x7C00U ? 0x00400000U : 0U);
    const std::uint32_t finite = magnitude < 0x0400U ? subnormal : normal;
    return from_bits(sign | (magnitude >= 0x7C00U ? special : finite));
}

}  // namespace

void f16_to_f32(const std::uint16_t* src, float* dst, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) dst[i] = half_to_float(src[i]);
}

void bf16_to_f32(const std::uint16_t* src, float* dst, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) dst[i] = from_bits(static_cast<std::uint32_t>(src[i]) << 16);
}

}  // namespace slipstream
