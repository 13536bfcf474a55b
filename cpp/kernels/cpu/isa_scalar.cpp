#define SLIPSTREAM_ISA scalar
#include "kernels/cpu/isa.h"

namespace slipstream {

const KernelTable& scalar_kernels() { return scalar::kernel_table("scalar"); }

int attention_scratch_floats(const AttentionOp& op) {
    const int query = op.num_heads / op.num_kv_heads * op.head_dim;
    return kQueryBlock * (query + 2 * static_cast<int>(part_floats(op))) + 2 * kKeyTile * op.head_dim;
}

}  // namespace slipstream
