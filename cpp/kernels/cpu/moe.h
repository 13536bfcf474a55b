#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/matrix.h"

// Mixture of experts. A token's k experts make k routed rows, sorted by expert; within an expert they fall into tiles of
// nearly equal size. Every number of a routed row is computed as for any other row, and a token's rows are summed by rank,
// so nothing depends on which tokens share an expert.

namespace slipstream {

// What one layer with experts works in, by the number of tokens of a step. `group` fills the first part.
struct MoeWork {
    int* token_rank = nullptr;    // [T * k], by routed row: token * k + rank
    int* routed = nullptr;        // [T * k], by token * k + rank: the routed row
    int* expert_start = nullptr;  // [E + 1] routed rows
    int* expert_tile = nullptr;   // [E + 1] tiles
    int* tile_start = nullptr;    // [tiles + 1] routed rows
    int* tile = nullptr;          // [T * k], by routed row
    std::int64_t* cost = nullptr;  // [E + 1] where each expert's share of the gate and up products begins
    int num_slices = 0;            // of all experts' gate and up products, each about as much work

    // Inputs and gated activations of the routed rows: in tiles, or in float32 where the matrix that reads them is dense.
    std::int32_t* in_tiles = nullptr;
    float* in_rows = nullptr;  // [T * k][in_ld]
    std::int32_t* mid_tiles = nullptr;
    float* mid_rows = nullptr;  // [T * k][mid_ld]
    int in_groups = 0, mid_groups = 0;
    std::ptrdiff_t in_ld = 0, mid_ld = 0;
    float* const* parts = nullptr;  // by thread: results of the routed rows, some blocks at a time
    int part_blocks = 1;            // how many
};

}  // namespace slipstream
