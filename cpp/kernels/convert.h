#pragma once

#include <cstddef>
#include <cstdint>

namespace slipstream {

// IEEE 754 binary16 to binary32, exact; subnormals, infinities and NaN payloads are kept (signalling NaNs become quiet).
void f16_to_f32(const std::uint16_t* src, float* dst, std::size_t n);

// bfloat16 to binary32: the sixteen bits are the upper half of the result.
void bf16_to_f32(const std::uint16_t* src, float* dst, std::size_t n);

}  // namespace slipstream
