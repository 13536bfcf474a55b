#pragma once

#include "kernels/cpu/linear_kernels.h"
#include "kernels/cpu/token_ops.h"

namespace slipstream::SLIPSTREAM_ISA {

using TileKernel = void (*)(const std::uint8_t* block, const std::int32_t* a, int groups, float* out, int ldo);
using DenseKernel = void (*)(const std::uint8_t* block, const float* x, std::ptrdiff_t ldx, std::int64_t cols, float* out,
                             int ldo);
constexpr int kStreams = 4;
constexpr int kStreamTokens = 2;  // up to here memory is the bound, and streams pay
SLIPSTREAM_INLINE int num_streams(int tokens) { return tokens == 1 ? 4 : 2; }  // more accumulators would not fit the registers
// Tiles (of 6 tokens) that every block of weights meets before the next tiles come: the block stays in the first-level cache,
// the tiles in the second, and memory is read once per panel.
constexpr int kPanelTiles = 8;
using StreamKernel = void (*)(const std::uint8_t* const* blocks, const std::int32_t* a, int groups, float* out);

struct FormatKernels {
    TileKernel tile[kMaxTile + 1], prefetching[kMaxTile + 1];
    StreamKernel streams[kStreamTokens + 1][kStreams + 1];
};

template <Format F>
SLIPSTREAM_INLINE constexpr FormatKernels format_kernels() {
    return {{nullptr, block_times_tile<F, 1, false>, block_times_tile<F, 2, false>, block_times_tile<F, 3, false>,
             block_times_tile<F, 4, false>, block_times_tile<F, 5, false>, block_times_tile<F, 6, false>},
            {nullptr, block_times_tile<F, 1, true>, block_times_tile<F, 2, true>, block_times_tile<F, 3, true>,
             block_times_tile<F, 4, true>, block_times_tile<F, 5, true>, block_times_tile<F, 6, true>},
            {{},
             {nullptr, blocks_times_tile<F, 1, 1>, blocks_times_tile<F, 2, 1>, blocks_times_tile<F, 3, 1>, blocks_times_tile<F, 4, 1>},
             {nullptr, blocks_times_tile<F, 1, 2>, blocks_times_tile<F, 2, 2>}}};
}

SLIPSTREAM_INLINE const FormatKernels& kernels_of(Format format) {
    static constexpr FormatKernels table[] = {
        format_kernels<Format::U4>(),          format_kernels<Format::U4Min>(), format_kernels<Format::U4MinNested>(),
        format_kernels<Format::U5>(),          format_kernels<Format::U5Min>(), format_kernels<Format::U5MinNested>(),
        format_kernels<Format::U6HalfNested>(), format_kernels<Format::I8>(), format_kernels<Format::U2MinHalfNested>(),
        format_kernels<Format::U3HalfNested>(), format_kernels<Format::U4Span2>(), format_kernels<Format::U4MinSpan2>(),
        format_kernels<Format::U4Span4>(), format_kernels<Format::U4MinSpan4>(), format_kernels<Format::I8Channel>()};
    return table[static_cast<int>(format) - static_cast<int>(Format::U4)];
}

SLIPSTREAM_INLINE DenseKernel dense_kernel(Format format, int tokens) {
    static constexpr DenseKernel table[3][5] = {
        {nullptr, dense_block<Format::F32, 1>, dense_block<Format::F32, 2>, dense_block<Format::F32, 3>, dense_block<Format::F32, 4>},
        {nullptr, dense_block<Format::F16, 1>, dense_block<Format::F16, 2>, dense_block<Format::F16, 3>, dense_block<Format::F16, 4>},
        {nullptr, dense_block<Format::BF16, 1>, dense_block<Format::BF16, 2>, dense_block<Format::BF16, 3>,
         dense_block<Format::BF16, 4>}};
    return table[static_cast<int>(format)][tokens];
}

// Bias, residual and cap of 16 outputs of one row, and where they go.
SLIPSTREAM_INLINE void finish(const Segment& s, const Step& step, std::int64_t block, int row, const float* y) {
    const int column = static_cast<int>(block) * 16;
    const Rows& rows = step.rows[s.out.buffer];
    F32x8 v[2] = {load(y), load(y + 8)};
    for (int h = 0; h < 2; ++h) {
        if (s.bias != nullptr) v[h] = add(v[h], load(s.bias + column + 8 * h));
        if (s.residual) v[h] = add(load(at(step, s.residual, row) + column + 8 * h), v[h]);
        if (s.soft_cap != 0.0f) v[h] = soft_cap(v[h], s.soft_cap);
    }
    float* out = rows.data + row * rows.ld + s.out.column + column;
    const std::ptrdiff_t room = rows.width - s.out.column - column;
    if (room >= 16) {
        store(out, v[0]);
        store(out + 8, v[1]);
        return;
    }
    float all[16];
    store(all, v[0]);
    store(all + 8, v[1]);
    for (std::ptrdiff_t i = 0; i < room; ++i) out[i] = all[i];
}

struct Place {
    int segment;
    std::int64_t block;
};

// The block with number `index` over all segments.
SLIPSTREAM_INLINE Place place_of(const LinearOp& op, std::int64_t index) {
    int s = 0;
    while (index >= op.segments[s].matrix.num_blocks()) index -= op.segments[s++].matrix.num_blocks();
    return {s, index};
}

// One tile of at most kStreamTokens rows: blocks far apart are read side by side.
SLIPSTREAM_INLINE void few_rows(const LinearOp& op, const Step& step, const std::int32_t* a, int tokens, std::int64_t first,
                                std::int64_t last) {
    while (first < last) {
        // A run of blocks of one format.
        const Format format = op.segments[place_of(op, first).segment].matrix.format;
        std::int64_t stop = first;
        while (stop < last && op.segments[place_of(op, stop).segment].matrix.format == format) {
            const Place p = place_of(op, stop);
            const std::int64_t rest = op.segments[p.segment].matrix.num_blocks() - p.block;
            stop = stop + rest < last ? stop + rest : last;
        }
        const FormatKernels& kernels = kernels_of(format);
        const int groups = static_cast<int>(op.segments[0].matrix.num_groups());
        const int streams = num_streams(tokens);
        const std::int64_t part = (stop - first) / streams;
        const auto run = [&](std::int64_t from, std::int64_t stride, int n) {
            const std::uint8_t* blocks[kStreams] = {};
            Place places[kStreams];
            float out[kStreams * kStreamTokens * 16];
            for (int i = 0; i < n; ++i) {
                places[i] = place_of(op, from + i * stride);
                blocks[i] = op.segments[places[i].segment].matrix.block(places[i].block);
            }
            kernels.streams[tokens][n](blocks, a, groups, out);
            for (int i = 0; i < n; ++i) {
                for (int t = 0; t < tokens; ++t) finish(op.segments[places[i].segment], step, places[i].block, t, out + 16 * (i * tokens + t));
            }
        };
        for (std::int64_t i = 0; i < part; ++i) run(first + i, part, streams);
        const std::int64_t done = first + part * streams;
        if (done < stop) run(done, 1, static_cast<int>(stop - done));
        first = stop;
    }
}

SLIPSTREAM_INLINE void many_rows(const LinearOp& op, const Step& step, const Segment& segment, std::int64_t first,
                                 std::int64_t last, int thread) {
    const Tiling& tiling = step.tiling[op.domain];
    const FormatKernels& kernels = kernels_of(segment.matrix.format);
    const int groups = static_cast<int>(segment.matrix.num_groups());
    float out[kMaxTile * 16];
    for (int panel = 0; panel < tiling.num_tiles; panel += kPanelTiles) {
        const int end = panel + kPanelTiles < tiling.num_tiles ? panel + kPanelTiles : tiling.num_tiles;
        for (std::int64_t block = first; block < last; ++block) {
            for (int i = panel; i < end; ++i) {
                const int start = tiling.start[i], size = tiling.start[i + 1] - start;
                const std::int32_t* a = tile_words(step, op.tiles, op.domain, i, thread);
                (i == 0 ? kernels.prefetching : kernels.tile)[size](segment.matrix.block(block), a, groups, out, 16);
                for (int t = 0; t < size; ++t) finish(segment, step, block, start + t, out + 16 * t);
            }
        }
    }
}

SLIPSTREAM_INLINE void dense_rows(const LinearOp& op, const Step& step, const Segment& segment, std::int64_t first,
                                  std::int64_t last) {
    const int rows = step.tiling[op.domain].rows;
    const std::ptrdiff_t ld = step.rows[op.in.buffer].ld;
    float out[4 * 16];
    for (std::int64_t block = first; block < last; ++block) {
        for (int row = 0; row < rows; row += 4) {
            const int n = rows - row < 4 ? rows - row : 4;
            dense_kernel(segment.matrix.format, n)(segment.matrix.block(block), at(step, op.in, row), ld, segment.matrix.cols, out, 16);
            for (int t = 0; t < n; ++t) finish(segment, step, block, row + t, out + 16 * t);
        }
    }
}

// act(gate) * up of 32 columns.
SLIPSTREAM_INLINE void gate_group(Gate gate, const float* gate0, const float* gate1, const float* up0, const float* up1, F32x8 (&v)[4]) {
    for (int i = 0; i < 2; ++i) {
        v[i] = mul(activate(gate, load(gate0 + 8 * i)), load(up0 + 8 * i));
        v[2 + i] = mul(activate(gate, load(gate1 + 8 * i)), load(up1 + 8 * i));
    }
}

// 32 gated columns of a row to where they go: in float32 and quantised.
SLIPSTREAM_INLINE void finish_gated(const LinearOp& op, const Step& step, std::int64_t pair, int row, const F32x8 (&v)[4]) {
    if (op.gated_out) {
        float* out = at(step, op.gated_out, row) + pair * 32;
        for (int i = 0; i < 4; ++i) store(out + 8 * i, v[i]);
    }
    if (op.gated_tiles >= 0) {
        const TileSlot slot = slot_of(step, op.gated_tiles, op.domain, row, 0);
        quantize_group(v, slot.words + pair * kTileWords * slot.size, slot.size, slot.slot);
    }
}

// Blocks first .. first + count - 1 of one matrix times one tile, in sequential streams. out [count][tokens][16].
SLIPSTREAM_INLINE void stream_blocks(const Matrix& m, std::int64_t first, std::int64_t count, const std::int32_t* a, int tokens,
                                     float* out) {
    const FormatKernels& kernels = kernels_of(m.format);
    const int groups = static_cast<int>(m.num_groups());
    const int streams = num_streams(tokens);
    const std::int64_t part = count / streams;
    float y[kStreams * kStreamTokens * 16];
    const auto run = [&](std::int64_t from, std::int64_t stride, int n) {
        const std::uint8_t* blocks[kStreams] = {};
        for (int i = 0; i < n; ++i) blocks[i] = m.block(first + from + i * stride);
        kernels.streams[tokens][n](blocks, a, groups, y);
        for (int i = 0; i < n; ++i) {
            float* to = out + 16 * tokens * (from + i * stride);
            for (int k = 0; k < 16 * tokens; k += 8) store(to + k, load(y + 16 * tokens * i + k));
        }
    };
    for (std::int64_t i = 0; i < part; ++i) run(i, part, streams);
    if (part * streams < count) run(part * streams, 1, static_cast<int>(count - part * streams));
}

SLIPSTREAM_INLINE void gated_few_rows(const LinearOp& op, const Step& step, const std::int32_t* a, int tokens, std::int64_t first,
                                      std::int64_t last, int thread) {
    float* gate = step.scratch[thread];  // [pairs][2][tokens][16]
    float* up = gate + 32 * tokens * (last - first);
    stream_blocks(op.segments[0].matrix, 2 * first, 2 * (last - first), a, tokens, gate);
    stream_blocks(op.segments[1].matrix, 2 * first, 2 * (last - first), a, tokens, up);
    for (std::int64_t pair = first; pair < last; ++pair) {
        for (int t = 0; t < tokens; ++t) {
            const std::int64_t at = 32 * tokens * (pair - first) + 16 * t;
            F32x8 v[4];
            gate_group(op.gate, gate + at, gate + at + 16 * tokens, up + at, up + at + 16 * tokens, v);
            finish_gated(op, step, pair, t, v);
        }
    }
}

SLIPSTREAM_INLINE void gated_many_rows(const LinearOp& op, const Step& step, std::int64_t first, std::int64_t last, int thread) {
    const Tiling& tiling = step.tiling[op.domain];
    const Matrix &gate = op.segments[0].matrix, &up = op.segments[1].matrix;
    const FormatKernels &gate_kernels = kernels_of(gate.format), &up_kernels = kernels_of(up.format);
    const int groups = static_cast<int>(gate.num_groups());
    float* out = step.scratch[thread];  // [rows of a panel][64]: 32 of gate, 32 of up
    for (int panel = 0; panel < tiling.num_tiles; panel += kPanelTiles) {
        const int end = panel + kPanelTiles < tiling.num_tiles ? panel + kPanelTiles : tiling.num_tiles;
        const int row0 = tiling.start[panel];
        for (std::int64_t pair = first; pair < last; ++pair) {
            for (int b = 0; b < 4; ++b) {
                const FormatKernels& kernels = b < 2 ? gate_kernels : up_kernels;
                const std::uint8_t* block = (b < 2 ? gate : up).block(2 * pair + b % 2);
                for (int i = panel; i < end; ++i) {
                    const int size = tiling.start[i + 1] - tiling.start[i];
                    const std::int32_t* a = tile_words(step, op.tiles, op.domain, i, thread);
                    float* to = out + 64 * (tiling.start[i] - row0) + 16 * b;
                    (i == 0 ? kernels.prefetching : kernels.tile)[size](block, a, groups, to, 64);
                }
            }
            // In two passes: one row's chain from exponential to quants is longer than the processor looks ahead.
            const int rows = tiling.start[end] - row0;
            for (int i = 0; i < rows; ++i) {
                float* both = out + 64 * i;
                F32x8 v[4];
                gate_group(op.gate, both, both + 16, both + 32, both + 48, v);
                for (int k = 0; k < 4; ++k) store(both + 8 * k, v[k]);
            }
            for (int i = 0; i < rows; ++i) {
                const float* both = out + 64 * i;
                const F32x8 v[4] = {load(both), load(both + 8), load(both + 16), load(both + 24)};
                finish_gated(op, step, pair, row0 + i, v);
            }
        }
    }
}

SLIPSTREAM_KERNEL void run_linear(const LinearOp& op, const Step& step, int thread, int first, int last) {
    const int rows = step.tiling[op.domain].rows;
    if (first >= last || rows == 0) return;
    if (op.gated) {
        if (rows <= kStreamTokens) gated_few_rows(op, step, tile_words(step, op.tiles, op.domain, 0, thread), rows, first, last, thread);
        else gated_many_rows(op, step, first, last, thread);
        return;
    }
    if (op.tiles >= 0 && rows <= kStreamTokens) {
        few_rows(op, step, tile_words(step, op.tiles, op.domain, 0, thread), rows, first, last);
        return;
    }
    std::int64_t offset = 0;
    for (int s = 0; s < op.num_segments; ++s) {
        const Segment& segment = op.segments[s];
        const std::int64_t blocks = segment.matrix.num_blocks();
        const std::int64_t from = first > offset ? first - offset : 0, to = last - offset < blocks ? last - offset : blocks;
        if (from < to) {
            if (op.tiles >= 0) many_rows(op, step, segment, from, to, thread);
            else dense_rows(op, step, segment, from, to);
        }
        offset += blocks;
    }
}

}  // namespace slipstream::SLIPSTREAM_ISA
