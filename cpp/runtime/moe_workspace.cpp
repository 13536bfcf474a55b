#include "runtime/moe_workspace.h"

#include <algorithm>

namespace slipstream {
namespace {

constexpr std::size_t kPartFloats = 1 << 20;  // of a thread, unless one block of results takes more
constexpr int kMaxPartBlocks = 64;

int groups_of(int columns) { return (columns + 31) / 32; }

}  // namespace

MoeWorkspace::Shape MoeWorkspace::shape_of(const MoeOp& op) {
    return {op.num_experts, op.top_k, static_cast<int>(op.gates[0].cols), static_cast<int>(op.downs[0].cols), op.gates[0].dense(), op.downs[0].dense()};
}

MoeWorkspace::MoeWorkspace(const MoeOp& op, int num_threads, int slices_per_thread)
    : shape_(shape_of(op)), num_blocks_(static_cast<int>(op.downs[0].num_blocks())), num_threads_(num_threads), num_slices_(num_threads * slices_per_thread) {
    const auto experts = static_cast<std::size_t>(shape_.num_experts) + 1;
    expert_start_.resize(experts);
    expert_tile_.resize(experts);
    cost_.resize(experts);
}

bool MoeWorkspace::fits(const MoeOp& op) const { return shape_of(op) == shape_ && op.downs[0].num_blocks() == num_blocks_; }

MoeWork MoeWorkspace::prepare(int num_tokens) {
    const int in_groups = groups_of(shape_.in_columns), mid_groups = groups_of(shape_.mid_columns);
    const auto rows = static_cast<std::size_t>(num_tokens) * static_cast<std::size_t>(shape_.top_k);
    if (num_tokens > capacity_) {
        const auto words = [&](int groups) { return rows * static_cast<std::size_t>(groups) * kTileGroupWords; };
        const auto floats = [&](int groups) { return rows * static_cast<std::size_t>(groups) * 32; };
        capacity_ = 0;
        token_rank_.resize(rows);
        routed_.resize(rows);
        tile_.resize(rows);
        tile_start_.resize(rows + 1);
        if (shape_.dense_in) in_rows_ = aligned_zeros<float>(floats(in_groups));
        else in_tiles_ = aligned_zeros<std::int32_t>(words(in_groups));
        if (shape_.dense_mid) mid_rows_ = aligned_zeros<float>(floats(mid_groups));
        else mid_tiles_ = aligned_zeros<std::int32_t>(words(mid_groups));
        capacity_ = num_tokens;
    }
    const std::size_t block = std::max<std::size_t>(rows, 1) * 16;
    const int blocks = std::min(num_blocks_, static_cast<int>(std::clamp<std::size_t>(kPartFloats / block, 1, kMaxPartBlocks)));
    if (block * static_cast<std::size_t>(blocks) > parts_floats_) {
        parts_.clear();
        part_views_.clear();
        parts_floats_ = 0;
        for (int t = 0; t < num_threads_; ++t) {
            parts_.push_back(aligned_zeros<float>(block * static_cast<std::size_t>(blocks)));
            part_views_.push_back(parts_.back().get());
        }
        parts_floats_ = block * static_cast<std::size_t>(blocks);
    }
    MoeWork work;
    work.token_rank = token_rank_.data();
    work.routed = routed_.data();
    work.expert_start = expert_start_.data();
    work.expert_tile = expert_tile_.data();
    work.tile_start = tile_start_.data();
    work.tile = tile_.data();
    work.cost = cost_.data();
    work.num_slices = num_slices_;
    work.in_tiles = in_tiles_.get();
    work.in_rows = in_rows_.get();
    work.mid_tiles = mid_tiles_.get();
    work.mid_rows = mid_rows_.get();
    work.in_groups = in_groups;
    work.mid_groups = mid_groups;
    work.in_ld = static_cast<std::ptrdiff_t>(in_groups) * 32;
    work.mid_ld = static_cast<std::ptrdiff_t>(mid_groups) * 32;
    work.parts = part_views_.data();
    work.part_blocks = blocks;
    return work;
}

}  // namespace slipstream
