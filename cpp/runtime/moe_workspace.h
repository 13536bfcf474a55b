#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cpu/ops.h"
#include "runtime/aligned.h"

namespace slipstream {

// The memory that layers with experts of one shape work in, one after another.
class MoeWorkspace {
  public:
    MoeWorkspace(const MoeOp& op, int num_threads, int slices_per_thread);

    bool fits(const MoeOp& op) const;
    MoeWork prepare(int num_tokens);

  private:
    struct Shape {
        int num_experts, top_k, in_columns, mid_columns;
        bool dense_in, dense_mid;
        bool operator==(const Shape& other) const {
            return num_experts == other.num_experts && top_k == other.top_k && in_columns == other.in_columns &&
                   mid_columns == other.mid_columns && dense_in == other.dense_in && dense_mid == other.dense_mid;
        }
    };
    static Shape shape_of(const MoeOp& op);

    const Shape shape_;
    const int num_blocks_, num_threads_, num_slices_;
    int capacity_ = 0;  // tokens
    std::size_t parts_floats_ = 0;
    std::vector<int> token_rank_, routed_, tile_, expert_start_, expert_tile_, tile_start_;
    std::vector<std::int64_t> cost_;
    Aligned<std::int32_t> in_tiles_, mid_tiles_;
    Aligned<float> in_rows_, mid_rows_;
    std::vector<Aligned<float>> parts_;
    std::vector<float*> part_views_;
};

}  // namespace slipstream
