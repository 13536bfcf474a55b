#pragma once

// Included by one file per instruction set, which defines SLIPSTREAM_ISA and is compiled with that set's flags.

#include "kernels/cpu/attention_ops.h"
#include "kernels/cpu/ceilings.h"
#include "kernels/cpu/linear_ops.h"
#include "kernels/cpu/moe_ops.h"
#include "kernels/cpu/sampling_draw.h"
#include "kernels/cpu/sampling_ops.h"
#include "kernels/cpu/token_ops.h"

namespace slipstream::SLIPSTREAM_ISA {

static const KernelTable& kernel_table(const char* name) {
    static const KernelTable table = {name,     run_embed, run_token,           run_head_norm, run_rope, run_linear,
                                      run_gate, run_soft_cap, run_attention_write, run_attention, run_attention_merge,
                                      run_route, run_moe_group, run_moe_gather, run_moe_gated, run_moe_down,
                                      run_draw, run_draw_reduced, run_draw_processed, run_logprob, spin_maddubs, spin_fma, read_streams};
    return table;
}

}  // namespace slipstream::SLIPSTREAM_ISA
