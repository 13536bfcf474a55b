#pragma once

// Kernels are written once in this vocabulary and compiled once per instruction set, each time in a namespace of its own
// (SLIPSTREAM_ISA). They use no templates of the standard library: the linker might keep the copy compiled for the wider
// instruction set and hand it to code that must run anywhere.

#if !defined(SLIPSTREAM_ISA)
#error "define SLIPSTREAM_ISA as the namespace of the instruction set that this file is compiled for"
#endif

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "simd/avx2.h"
#define SLIPSTREAM_UNROLL _Pragma("GCC unroll 32")
#else
#include "simd/scalar.h"
#define SLIPSTREAM_UNROLL  // eight lanes are a loop here: unrolling all of them would take minutes to compile
#endif

#define SLIPSTREAM_KERNEL static __attribute__((noinline))
