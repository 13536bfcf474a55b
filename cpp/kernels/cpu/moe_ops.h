#pragma once

#include "kernels/cpu/linear_ops.h"

// Sparsely gated experts: Shazeer et al., arXiv 1701.06538.

namespace slipstream::SLIPSTREAM_ISA {

// What a pair of blocks costs besides its rows: reading its weights.
constexpr int kReadingCost = 4;

SLIPSTREAM_KERNEL void run_route(const RouteOp& op, const Step& step, int thread, int first, int last) {
    const int n = op.num_experts, span = padded(n);
    float* p = step.scratch[thread];
    for (int row = first; row < last; ++row) {
        const float* x = at(step, op.in, row);
        float* out = at(step, op.out, row);
        float top = x[0];
        for (int e = 1; e < n; ++e) top = x[e] > top ? x[e] : top;
        for (int e = 0; e < span; ++e) p[e] = e < n ? x[e] - top : 0.0f;
        for (int e = 0; e < span; e += 8) store(p + e, exp(load(p + e)));
        for (int e = n; e < span; ++e) p[e] = 0.0f;
        F32x8 total = zero();
        for (int e = 0; e < span; e += 8) total = add(total, load(p + e));
        const F32x8 all = set(sum(total));
        for (int e = 0; e < span; e += 8) store(p + e, div(load(p + e), all));
        float chosen = 0.0f;
        for (int rank = 0; rank < op.top_k; ++rank) {
            int best = -1;
            for (int e = 0; e < n; ++e) {
                if (p[e] != -1.0f && (best < 0 || p[e] > p[best])) best = e;
            }
            out[rank] = p[best];
            out[op.top_k + rank] = static_cast<float>(best);
            chosen += p[best];
            p[best] = -1.0f;  // taken
        }
        if (!op.normalise) continue;
        for (int rank = 0; rank < op.top_k; ++rank) out[rank] = out[rank] / chosen;
    }
}

SLIPSTREAM_INLINE int expert_of(const MoeOp& op, const Step& step, int token, int rank) {
    const float e = at(step, op.routing, token)[op.top_k + rank];
    return e >= 0.0f && e < static_cast<float>(op.num_experts) ? static_cast<int>(e) : 0;  // whatever the buffer holds
}

SLIPSTREAM_INLINE std::int64_t num_pairs(const Matrix& m) { return (m.num_blocks() + 1) / 2; }

// Sorts the routed rows by expert, and cuts them into tiles.
SLIPSTREAM_KERNEL void run_moe_group(const MoeOp& op, const Step& step) {
    const MoeWork& work = step.moe[op.work];
    const int tokens = step.tiling[kTokens].rows, experts = op.num_experts;
    int* next = work.expert_start;  // [e + 1]: how many rows, then where the next one goes
    for (int e = 0; e <= experts; ++e) next[e] = 0;
    for (int t = 0; t < tokens; ++t) {
        for (int rank = 0; rank < op.top_k; ++rank) ++next[expert_of(op, step, t, rank) + 1];
    }
    work.expert_tile[0] = work.tile_start[0] = 0;
    work.cost[0] = 0;
    int row = 0, tile = 0;
    for (int e = 0; e < experts; ++e) {
        const int n = next[e + 1], tiles = (n + kTileTokens - 1) / kTileTokens;
        for (int i = 0; i < tiles; ++i, ++tile) {
            const int begin = static_cast<int>(static_cast<std::int64_t>(n) * i / tiles), end = static_cast<int>(static_cast<std::int64_t>(n) * (i + 1) / tiles);
            for (int r = begin; r < end; ++r) work.tile[row + r] = tile;
            work.tile_start[tile + 1] = row + end;
        }
        work.expert_tile[e + 1] = tile;
        work.cost[e + 1] = work.cost[e] + (n == 0 ? 0 : num_pairs(op.gates[e]) * (n + kReadingCost));
        next[e + 1] = row;
        row += n;
    }
    for (int t = 0; t < tokens; ++t) {
        for (int rank = 0; rank < op.top_k; ++rank) {
            const int i = t * op.top_k + rank, at_row = next[expert_of(op, step, t, rank) + 1]++;
            work.token_rank[at_row] = i;
            work.routed[i] = at_row;
        }
    }
}

SLIPSTREAM_INLINE std::int32_t* moe_tile(std::int32_t* words, int groups, const MoeWork& work, int tile) {
    return words + static_cast<std::ptrdiff_t>(work.tile_start[tile]) * groups * kTileWords;
}

SLIPSTREAM_INLINE TileSlot moe_slot(std::int32_t* words, int groups, const MoeWork& work, int row) {
    const int tile = work.tile[row], start = work.tile_start[tile];
    return {moe_tile(words, groups, work, tile), work.tile_start[tile + 1] - start, row - start};
}

// The inputs of routed rows first .. last - 1.
SLIPSTREAM_KERNEL void run_moe_gather(const MoeOp& op, const Step& step, int first, int last) {
    const MoeWork& work = step.moe[op.work];
    for (int row = first; row < last; ++row) {
        const float* x = at(step, op.in, work.token_rank[row] / op.top_k);
        if (work.in_tiles != nullptr) {
            quantize_row(x, 0, work.in_groups, moe_slot(work.in_tiles, work.in_groups, work, row));
            continue;
        }
        float* out = work.in_rows + row * work.in_ld;
        for (std::ptrdiff_t k = 0; k < work.in_ld; k += 8) store(out + k, load(x + k));
    }
}

// One block times an expert's routed rows from `row` to `end`; tile or first row of them, and results [rows][ldo].
struct MoeInput {
    const MoeWork& work;
    std::int32_t* tiles;
    const float* rows;
    int groups;
    std::ptrdiff_t ld;
};

SLIPSTREAM_INLINE void block_times_rows(const Matrix& m, std::int64_t block, const MoeInput& in, int tile, int end_tile, bool fresh,
                                        float* out, int ldo) {
    const MoeWork& work = in.work;
    const int row0 = work.tile_start[tile];
    if (in.tiles == nullptr) {
        const int end = work.tile_start[end_tile];
        for (int row = row0; row < end; row += 4) {
            const int n = end - row < 4 ? end - row : 4;
            dense_kernel(m.format, n)(m.block(block), in.rows + row * in.ld, in.ld, m.cols, out + static_cast<std::ptrdiff_t>(row - row0) * ldo, ldo);
        }
        return;
    }
    const FormatKernels& kernels = kernels_of(m.format);
    for (int i = tile; i < end_tile; ++i) {
        const int size = work.tile_start[i + 1] - work.tile_start[i];
        const TileKernel kernel = (fresh && i == tile ? kernels.prefetching : kernels.tile)[size];
        kernel(m.block(block), moe_tile(in.tiles, in.groups, work, i), in.groups, out + static_cast<std::ptrdiff_t>(work.tile_start[i] - row0) * ldo, ldo);
    }
}

// act(gate) * up of 32 columns of a routed row.
SLIPSTREAM_INLINE void finish_expert(const MoeOp& op, const MoeWork& work, std::int64_t pair, int row, const float* gate, const float* up) {
    F32x8 v[4];
    for (int i = 0; i < 4; ++i) v[i] = mul(activate(op.gate, load(gate + 8 * i)), load(up + 8 * i));
    if (work.mid_rows != nullptr) {
        float* out = work.mid_rows + row * work.mid_ld + pair * 32;
        for (int i = 0; i < 4; ++i) store(out + 8 * i, v[i]);
        return;
    }
    const TileSlot slot = moe_slot(work.mid_tiles, work.mid_groups, work, row);
    quantize_group(v, slot.words + pair * kTileWords * slot.size, slot.size, slot.slot);
}

SLIPSTREAM_INLINE void clear(float* out, std::int64_t floats) {
    for (std::int64_t i = 0; i < floats; i += 8) store(out + i, zero());
}

// Pairs first .. last - 1 of one expert's gate and up.
SLIPSTREAM_INLINE void expert_pairs(const MoeOp& op, const Step& step, int e, std::int64_t first, std::int64_t last, int thread) {
    const MoeWork& work = step.moe[op.work];
    const Matrix &gate = op.gates[e], &up = op.ups[e];
    const std::int64_t blocks = gate.num_blocks();
    const MoeInput in = {work, work.in_tiles, work.in_rows, work.in_groups, work.in_ld};
    const int begin = work.expert_tile[e], end = work.expert_tile[e + 1];
    float* out = step.scratch[thread];
    if (work.in_tiles != nullptr && work.expert_start[e] + 1 == work.expert_start[e + 1]) {
        const std::int32_t* a = moe_tile(work.in_tiles, work.in_groups, work, begin);
        const std::int64_t n = last - first, have = 2 * last < blocks ? 2 * n : blocks - 2 * first;
        clear(out, 64 * n);
        stream_blocks(gate, 2 * first, have, a, 1, out);
        stream_blocks(up, 2 * first, have, a, 1, out + 32 * n);
        for (std::int64_t i = 0; i < n; ++i) finish_expert(op, work, first + i, work.expert_start[e], out + 32 * i, out + 32 * (n + i));
        return;
    }
    for (int panel = begin; panel < end; panel += kPanelTiles) {
        const int stop = panel + kPanelTiles < end ? panel + kPanelTiles : end;
        const int row0 = work.tile_start[panel], rows = work.tile_start[stop] - row0;
        for (std::int64_t pair = first; pair < last; ++pair) {
            // [rows][64]: 32 columns of gate, 32 of up
            if (2 * pair + 1 >= blocks) clear(out, static_cast<std::int64_t>(rows) * 64);
            for (int b = 0; b < 4; ++b) {
                const std::int64_t block = 2 * pair + b % 2;
                if (block < blocks) block_times_rows(b < 2 ? gate : up, block, in, panel, stop, panel == begin, out + 16 * b, 64);
            }
            for (int i = 0; i < rows; ++i) finish_expert(op, work, pair, row0 + i, out + 64 * i, out + 64 * i + 32);
        }
    }
}

SLIPSTREAM_KERNEL void run_moe_gated(const MoeOp& op, const Step& step, int thread, int first, int last) {
    const MoeWork& work = step.moe[op.work];
    const std::int64_t total = work.cost[op.num_experts], from = total * first / work.num_slices, to = total * last / work.num_slices;
    for (int e = 0; e < op.num_experts; ++e) {
        const std::int64_t begin = work.cost[e], end = work.cost[e + 1];
        if (begin == end || end <= from || begin >= to) continue;
        // A pair belongs to the slice that its beginning lies in.
        const std::int64_t pairs = num_pairs(op.gates[e]), each = (end - begin) / pairs;
        const std::int64_t p = from > begin ? (from - begin + each - 1) / each : 0;
        const std::int64_t q = to < end ? (to - begin + each - 1) / each : pairs;
        if (p < q) expert_pairs(op, step, e, p, q, thread);
    }
}

// Blocks first .. last - 1 of all experts' results, then of the tokens' sums.
SLIPSTREAM_INLINE void down_blocks(const MoeOp& op, const Step& step, std::int64_t first, std::int64_t last, float* parts) {
    const MoeWork& work = step.moe[op.work];
    const MoeInput in = {work, work.mid_tiles, work.mid_rows, work.mid_groups, work.mid_ld};
    const int width = static_cast<int>(last - first) * 16;
    for (int e = 0; e < op.num_experts; ++e) {
        const int begin = work.expert_tile[e], end = work.expert_tile[e + 1];
        if (begin == end) continue;
        const Matrix& m = op.downs[e];
        float* out = parts + static_cast<std::ptrdiff_t>(work.expert_start[e]) * width;
        if (work.mid_tiles != nullptr && work.expert_start[e] + 1 == work.expert_start[e + 1]) {
            stream_blocks(m, first, last - first, moe_tile(work.mid_tiles, work.mid_groups, work, begin), 1, out);
            continue;
        }
        for (int panel = begin; panel < end; panel += kPanelTiles) {
            const int stop = panel + kPanelTiles < end ? panel + kPanelTiles : end;
            float* rows = parts + static_cast<std::ptrdiff_t>(work.tile_start[panel]) * width;
            for (std::int64_t b = first; b < last; ++b) block_times_rows(m, b, in, panel, stop, panel == begin, rows + 16 * (b - first), width);
        }
    }
    const int tokens = step.tiling[kTokens].rows;
    for (int t = 0; t < tokens; ++t) {
        const float* weights = at(step, op.routing, t);
        const int* routed = work.routed + static_cast<std::ptrdiff_t>(t) * op.top_k;
        float* out = at(step, op.out, t) + 16 * first;
        for (int c = 0; c < width; c += 8) {
            F32x8 v = mul(load(parts + static_cast<std::ptrdiff_t>(routed[0]) * width + c), set(weights[0]));
            for (int rank = 1; rank < op.top_k; ++rank) {
                v = add(v, mul(load(parts + static_cast<std::ptrdiff_t>(routed[rank]) * width + c), set(weights[rank])));
            }
            store(out + c, v);
        }
    }
}

SLIPSTREAM_KERNEL void run_moe_down(const MoeOp& op, const Step& step, int thread, int first, int last) {
    const MoeWork& work = step.moe[op.work];
    for (int b = first; b < last; b += work.part_blocks) {
        down_blocks(op, step, b, b + work.part_blocks < last ? b + work.part_blocks : last, work.parts[thread]);
    }
}

}  // namespace slipstream::SLIPSTREAM_ISA
