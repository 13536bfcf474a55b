#pragma once

#include "kernels/cpu/op_tools.h"
#include "kernels/cpu/pack.h"

namespace slipstream::SLIPSTREAM_ISA {

SLIPSTREAM_KERNEL void run_embed(const EmbedOp& op, const Step& step, int, int first, int last) {
    const int columns = static_cast<int>(op.table.cols);
    for (int row = first; row < last; ++row) {
        float* out = at(step, op.out, row);
        unpack_row(op.table, step.token_ids[row], out);
        if (op.scale != 1.0f) {
            for (int k = 0; k < columns; ++k) out[k] *= op.scale;
        }
    }
}

SLIPSTREAM_KERNEL void run_token(const TokenOp& op, const Step& step, int thread, int first, int last, bool stores) {
    const int span = padded(op.columns);
    float* work = step.scratch[thread];
    for (int row = first; row < last; ++row) {
        const int from = op.gather ? step.logits_rows[row] : row;
        const float* v = at(step, op.in, from);
        if (op.post_weight != nullptr) {
            rms_norm(v, op.post_weight, op.post_eps, op.columns, span, work);
            v = work;
        }
        if (op.scale != 1.0f) {
            for (int k = 0; k < span; k += 8) store(work + k, mul(load(v + k), set(op.scale)));
            v = work;
        }
        if (op.residual) {
            const float* r = at(step, op.residual, from);
            for (int k = 0; k < span; k += 8) store(work + k, add(load(r + k), load(v + k)));
            v = work;
        }
        if (op.sum && stores) {
            float* out = at(step, op.sum, row);
            for (int k = 0; k < span; k += 8) store(out + k, load(v + k));
        }
        if (op.weight != nullptr) {
            rms_norm(v, op.weight, op.eps, op.columns, span, work);
            v = work;
        }
        if (op.out && stores) {
            float* out = at(step, op.out, row);
            for (int k = 0; k < span; k += 8) store(out + k, load(v + k));
        }
        if (op.tiles >= 0) quantize_row(v, 0, span / 32, slot_of(step, op.tiles, op.domain, row, thread));
    }
}

SLIPSTREAM_KERNEL void run_head_norm(const HeadNormOp& op, const Step& step, int, int first, int last) {
    for (int row = first; row < last; ++row) {
        const float* in = at(step, op.in, row);
        float* out = at(step, op.out, row);
        for (int c = 0; c < op.columns; c += op.head_dim) rms_norm(in + c, op.weight, op.eps, op.head_dim, op.head_dim, out + c);
    }
}

SLIPSTREAM_KERNEL void run_rope(const RopeOp& op, const Step& step, int, int first, int last) {
    for (int row = first; row < last; ++row) {
        const float* in = at(step, op.in, row);
        float* out = at(step, op.out, row);
        for (int k = 0; k < op.columns; ++k) out[k] = in[k];
        for (int c = 0; c < op.columns; c += op.head_dim) rotate(out + c, op.table, step.positions[row]);
    }
}

SLIPSTREAM_KERNEL void run_gate(const GateOp& op, const Step& step, int thread, int first, int last) {
    const int span = padded(op.columns);
    float* work = step.scratch[thread];
    for (int row = first; row < last; ++row) {
        const float *gate = at(step, op.gate_in, row), *up = at(step, op.up_in, row);
        float* out = op.out ? at(step, op.out, row) : work;
        for (int k = 0; k < span; k += 8) store(out + k, mul(activate(op.gate, load(gate + k)), load(up + k)));
        if (op.tiles >= 0) quantize_row(out, 0, span / 32, slot_of(step, op.tiles, kTokens, row, thread));
    }
}

SLIPSTREAM_INLINE F32x8 soft_cap(F32x8 x, float cap) { return mul(tanh(div(x, set(cap))), set(cap)); }

SLIPSTREAM_KERNEL void run_soft_cap(const SoftCapOp& op, const Step& step, int, int first, int last) {
    for (int row = first; row < last; ++row) {
        const float* in = at(step, op.in, row);
        float* out = at(step, op.out, row);
        for (int k = 0; k < padded(op.columns); k += 8) store(out + k, soft_cap(load(in + k), op.cap));
    }
}

}  // namespace slipstream::SLIPSTREAM_ISA
