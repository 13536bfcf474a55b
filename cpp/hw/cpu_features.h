#pragma once

#include <string>
#include <vector>

namespace slipstream {

// Instruction sets that the processor has and the operating system saves and restores, sorted by name.
//   x86-64 (CPUID leaves 1 and 7, XGETBV):  amx_bf16 amx_int8 amx_tile avx avx2 avx512_bf16 avx512_vnni avx512bw
//          avx512dq avx512f avx512vl avx_vnni bmi2 f16c fma sse4_2
//   aarch64 (getauxval HWCAP, HWCAP2):      bf16 dotprod fp16 i8mm neon sve sve2
std::vector<std::string> cpu_features();

}  // namespace slipstream
