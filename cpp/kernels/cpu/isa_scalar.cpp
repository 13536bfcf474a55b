#define SLIPSTREAM_ISA scalar
#include "kernels/cpu/isa.h"

namespace slipstream {

const KernelTable& scalar_kernels() { return scalar::kernel_table("scalar"); }

int attention_scratch_floats(const AttentionOp& op) {
    const int heads = op.num_heads / op.num_kv_heads;
    return query_block(op) * (heads * (op.head_dim + kChunk) + 2 * static_cast<int>(part_floats(op))) + kKeyTile * op.head_dim;
}

}  // namespace slipstream
