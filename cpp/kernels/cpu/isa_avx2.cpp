#if defined(__x86_64__)
#define SLIPSTREAM_ISA avx2
#include "kernels/cpu/isa.h"

namespace slipstream {
const KernelTable& avx2_kernels() { return avx2::kernel_table("avx2"); }
}  // namespace slipstream
#endif
