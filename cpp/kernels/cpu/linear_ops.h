#pragma once

#include "kernels/cpu/linear_kernels.h"
#include "kernels/cpu/token_ops.h"

namespace slipstream::SLIPSTREAM_ISA {

using TileKernel = void (*)(const std::uint8_t* block, const std::int32_t* a, int groups, float* out, int ldo);
using DenseKernel = void (*)(const std::uint8_t* block, const float* x, std::ptrdiff_t ldx, std::int64_t cols, float* out,
                             int ldo);
constexpr int kStreams = 4;
using StreamKernel = void (*)(const std::uint8_t* const* blocks, const std::int32_t* a, int groups, float* out);

struct FormatKernels {
    TileKernel tile[kMaxTile + 1], prefetching[kMaxTile + 1];
    StreamKernel streams[kStreams + 1];
};

template <Format F>
SLIPSTREAM_INLINE constexpr FormatKernels format_kernels() {
    return {{nullptr, block_times_tile<F, 1, false>, block_times_tile<F, 2, false>, block_times_tile<F, 3, false>,
             block_times_tile<F, 4, false>, block_times_tile<F, 5, false>, block_times_tile<F, 6, false>},
            {nullptr, block_times_tile<F, 1, true>, block_times_tile<F, 2, true>, block_times_tile<F, 3, true>,
             block_times_tile<F, 4, true>, block_times_tile<F, 5, true>, block_times_tile<F, 6, true>},
            {nullptr, blocks_times_token<F, 1>, blocks_times_token<F, 2>, blocks_times_token<F, 3>, blocks_times_token<F, 4>}};
}

SLIPSTREAM_INLINE const FormatKernels& kernels_of(Format format) {
    static constexpr FormatKernels table[] = {
        format_kernels<Format::U4>(),          format_kernels<Format::U4Min>(), format_kernels<Format::U4MinNested>(),
        format_kernels<Format::U5>(),          format_kernels<Format::U5Min>(), format_kernels<Format::U5MinNested>(),
        format_kernels<Format::U6HalfNested>(), format_kernels<Format::I8>()};
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

// One row: blocks far apart are read side by side.
SLIPSTREAM_INLINE void one_row(const LinearOp& op, const Step& step, const std::int32_t* a, std::int64_t first,
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
        const std::int64_t quarter = (stop - first) / kStreams;
        const auto run = [&](std::int64_t from, std::int64_t stride, int n) {
            const std::uint8_t* blocks[kStreams];
            Place places[kStreams];
            float out[kStreams * 16];
            for (int i = 0; i < n; ++i) {
                places[i] = place_of(op, from + i * stride);
                blocks[i] = op.segments[places[i].segment].matrix.block(places[i].block);
            }
            kernels.streams[n](blocks, a, groups, out);
            for (int i = 0; i < n; ++i) finish(op.segments[places[i].segment], step, places[i].block, 0, out + 16 * i);
        };
        for (std::int64_t i = 0; i < quarter; ++i) run(first + i, quarter, kStreams);
        const std::int64_t done = first + quarter * kStreams;
        if (done < stop) run(done, 1, static_cast<int>(stop - done));
        first = stop;
    }
}

SLIPSTREAM_INLINE void many_rows(const LinearOp& op, const Step& step, const Segment& segment, std::int64_t first,
                                 std::int64_t last, int thread) {
    const Tiling& tiling = step.tiling[op.domain];
    const FormatKernels& kernels = kernels_of(segment.matrix.format);
    const int groups = static_cast<int>(segment.matrix.num_groups());
    // Few rows: a block stays in the first-level cache while all tiles pass. Many: several blocks per pass of the tiles.
    const int width = tiling.rows <= 64 ? 1 : groups <= 32 ? 4 : 2;
    float out[kMaxTile * 64];
    for (std::int64_t block = first; block < last; block += width) {
        const int n = static_cast<int>(last - block < width ? last - block : width);
        for (int i = 0; i < tiling.num_tiles; ++i) {
            const int start = tiling.start[i], size = tiling.start[i + 1] - start;
            const std::int32_t* a = tile_words(step, op.tiles, op.domain, i, thread);
            const TileKernel kernel = i == 0 && width == 1 ? kernels.prefetching[size] : kernels.tile[size];
            for (int b = 0; b < n; ++b) kernel(segment.matrix.block(block + b), a, groups, out + 16 * b, 64);
            for (int t = 0; t < size; ++t) {
                for (int b = 0; b < n; ++b) finish(segment, step, block + b, start + t, out + 64 * t + 16 * b);
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

// act(gate) * up of 32 columns, in float32 and quantised.
SLIPSTREAM_INLINE void finish_gated(const LinearOp& op, const Step& step, std::int64_t pair, int row, const float* gate,
                                    const float* up) {
    F32x8 v[4];
    for (int i = 0; i < 4; ++i) {
        F32x8 g = load(gate + 8 * i), u = load(up + 8 * i);
        v[i] = mul(activate(op.gate, g), u);
    }
    if (op.gated_out) {
        float* out = at(step, op.gated_out, row) + pair * 32;
        for (int i = 0; i < 4; ++i) store(out + 8 * i, v[i]);
    }
    if (op.gated_tiles >= 0) {
        const TileSlot slot = slot_of(step, op.gated_tiles, op.domain, row, 0);
        quantize_group(v, slot.words + pair * kTileWords * slot.size, slot.size, slot.slot);
    }
}

SLIPSTREAM_INLINE void gated_one_row(const LinearOp& op, const Step& step, const std::int32_t* a, std::int64_t first,
                                     std::int64_t last) {
    const Matrix &gate = op.segments[0].matrix, &up = op.segments[1].matrix;
    const int groups = static_cast<int>(gate.num_groups());
    // Pairs `first + i` and `first + half + i` go together: four streams for gate and for up each.
    const std::int64_t half = (last - first) / 2;
    const auto run = [&](std::int64_t one, std::int64_t two, int n) {
        const std::uint8_t *gates[4], *ups[4];
        const std::int64_t pairs[2] = {one, two};
        float g[64], u[64];
        for (int i = 0; i < 2 * n; ++i) {
            gates[i] = gate.block(2 * pairs[i / 2] + i % 2);
            ups[i] = up.block(2 * pairs[i / 2] + i % 2);
        }
        kernels_of(gate.format).streams[2 * n](gates, a, groups, g);
        kernels_of(up.format).streams[2 * n](ups, a, groups, u);
        for (int i = 0; i < n; ++i) finish_gated(op, step, pairs[i], 0, g + 32 * i, u + 32 * i);
    };
    for (std::int64_t i = 0; i < half; ++i) run(first + i, first + half + i, 2);
    if ((last - first) % 2 != 0) run(last - 1, last - 1, 1);
}

SLIPSTREAM_INLINE void gated_many_rows(const LinearOp& op, const Step& step, std::int64_t first, std::int64_t last, int thread) {
    const Tiling& tiling = step.tiling[op.domain];
    const Matrix &gate = op.segments[0].matrix, &up = op.segments[1].matrix;
    const FormatKernels &gate_kernels = kernels_of(gate.format), &up_kernels = kernels_of(up.format);
    const int groups = static_cast<int>(gate.num_groups());
    const bool few = tiling.rows <= 64;
    float* out = step.scratch[thread];  // [rows or tile][64]: 32 of gate, 32 of up
    const auto multiply = [&](std::int64_t pair, int b, int i, float* to, bool ahead) {
        const FormatKernels& kernels = b < 2 ? gate_kernels : up_kernels;
        const int size = tiling.start[i + 1] - tiling.start[i];
        const std::uint8_t* block = (b < 2 ? gate : up).block(2 * pair + b % 2);
        (ahead ? kernels.prefetching : kernels.tile)[size](block, tile_words(step, op.tiles, op.domain, i, thread), groups, to + 16 * b, 64);
    };
    for (std::int64_t pair = first; pair < last; ++pair) {
        if (few) {
            for (int b = 0; b < 4; ++b) {
                for (int i = 0; i < tiling.num_tiles; ++i) multiply(pair, b, i, out + 64 * tiling.start[i], i == 0);
            }
            for (int row = 0; row < tiling.rows; ++row) finish_gated(op, step, pair, row, out + 64 * row, out + 64 * row + 32);
            continue;
        }
        for (int i = 0; i < tiling.num_tiles; ++i) {
            for (int b = 0; b < 4; ++b) multiply(pair, b, i, out, false);
            for (int row = tiling.start[i], t = 0; row < tiling.start[i + 1]; ++row, ++t) {
                finish_gated(op, step, pair, row, out + 64 * t, out + 64 * t + 32);
            }
        }
    }
}

SLIPSTREAM_KERNEL void run_linear(const LinearOp& op, const Step& step, int thread) {
    const std::int64_t first = op.bounds[thread], last = op.bounds[thread + 1];
    const int rows = step.tiling[op.domain].rows;
    if (first >= last || rows == 0) return;
    if (op.gated) {
        if (rows == 1) gated_one_row(op, step, tile_words(step, op.tiles, op.domain, 0, thread), first, last);
        else gated_many_rows(op, step, first, last, thread);
        return;
    }
    if (op.tiles >= 0 && rows == 1) {
        one_row(op, step, tile_words(step, op.tiles, op.domain, 0, thread), first, last);
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
