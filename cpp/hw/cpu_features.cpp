#include "hw/cpu_features.h"

#include <algorithm>
#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace slipstream {
namespace {

struct Feature {
    const char* name;
    bool present;
};

constexpr bool bit(std::uint64_t word, int index) { return ((word >> index) & 1U) != 0; }

#if defined(__x86_64__)

struct Registers {
    std::uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(std::uint32_t leaf, std::uint32_t subleaf) {
    Registers r;
    if (__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) return {};
    return r;
}

// XCR0: which register files the operating system switches between threads. The instruction is spelled out because the
// intrinsic needs -mxsave, which would let the compiler use XSAVE elsewhere in this file.
std::uint64_t xgetbv() {
    std::uint32_t low = 0, high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (static_cast<std::uint64_t>(high) << 32) | low;
}

std::vector<Feature> probe() {
    const Registers leaf1 = cpuid(1, 0);
    const Registers leaf7 = cpuid(7, 0);
    const Registers leaf7_1 = leaf7.eax >= 1 ? cpuid(7, 1) : Registers{};

    const bool osxsave = bit(leaf1.ecx, 27);
    const std::uint64_t xcr0 = osxsave ? xgetbv() : 0;
    const bool os_avx = (xcr0 & 0x6U) == 0x6U;                       // XMM, YMM
    const bool os_avx512 = os_avx && (xcr0 & 0xE0U) == 0xE0U;        // opmask, ZMM low halves, ZMM16-31
    const bool os_amx = (xcr0 & 0x60000U) == 0x60000U;               // TILECFG, TILEDATA

    const bool avx = os_avx && bit(leaf1.ecx, 28);
    const bool avx512 = os_avx512 && bit(leaf7.ebx, 16);
    const bool amx = os_amx && bit(leaf7.edx, 24);
    return {
        {"sse4_2", bit(leaf1.ecx, 20)},
        {"avx", avx},
        {"avx2", avx && bit(leaf7.ebx, 5)},
        {"fma", avx && bit(leaf1.ecx, 12)},
        {"f16c", avx && bit(leaf1.ecx, 29)},
        {"bmi2", bit(leaf7.ebx, 8)},
        {"avx_vnni", avx && bit(leaf7_1.eax, 4)},
        {"avx512f", avx512},
        {"avx512dq", avx512 && bit(leaf7.ebx, 17)},
        {"avx512bw", avx512 && bit(leaf7.ebx, 30)},
        {"avx512vl", avx512 && bit(leaf7.ebx, 31)},
        {"avx512_vnni", avx512 && bit(leaf7.ecx, 11)},
        {"avx512_bf16", avx512 && bit(leaf7_1.eax, 5)},
        {"amx_tile", amx},
        {"amx_int8", amx && bit(leaf7.edx, 25)},
        {"amx_bf16", amx && bit(leaf7.edx, 22)},
    };
}

#elif defined(__aarch64__)

// Bit numbers of the kernel's arm64 ELF hwcaps; older <asm/hwcap.h> headers miss the newer names.
std::vector<Feature> probe() {
    const std::uint64_t hwcap = getauxval(AT_HWCAP);
    const std::uint64_t hwcap2 = getauxval(AT_HWCAP2);
    return {
        {"neon", bit(hwcap, 1)},      {"fp16", bit(hwcap, 10)},  {"dotprod", bit(hwcap, 20)}, {"sve", bit(hwcap, 22)},
        {"sve2", bit(hwcap2, 1)},     {"i8mm", bit(hwcap2, 13)}, {"bf16", bit(hwcap2, 14)},
    };
}

#else
#error "Slipstream builds on x86-64 and aarch64"
#endif

}  // namespace

std::vector<std::string> cpu_features() {
    std::vector<std::string> names;
    for (const Feature& feature : probe()) {
        if (feature.present) names.emplace_back(feature.name);
    }
    std::sort(names.begin(), names.end());
    return names;
}

}  // namespace slipstream
