#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/ops.h"
#include "runtime/aligned.h"

namespace slipstream {

// Row r of a batch: its tokens are query_start[r] .. query_start[r + 1] - 1, the last of kv_len[r].
struct BatchRows {
    int num_rows = 0;
    const std::int32_t* query_start = nullptr;
    const std::int32_t* kv_len = nullptr;
};

// Divides the attention of one step among threads. The division never changes a number: chunks are always computed apart
// and merged in order, by whoever has them.
class ScheduleBuilder {
  public:
    ScheduleBuilder(const AttentionOp& op, int num_threads) : op_(op), num_threads_(num_threads) {}

    bool fits(const AttentionOp& op) const;
    AttentionSchedule build(const BatchRows& rows);

  private:
    void add_row(const BatchRows& rows, int row, bool split);
    bool divisible(const BatchRows& rows, bool split, int per_thread) const;
    void divide();

    const AttentionOp op_;
    const int num_threads_;
    int num_parts_ = 0, block_ = 1;  // queries of a task
    std::vector<AttentionTask> tasks_, sorted_;
    std::vector<int> bounds_, owners_, next_;
    std::vector<std::int64_t> costs_;
    std::vector<AttentionMerge> merges_;
    Aligned<float> parts_;
    std::size_t parts_capacity_ = 0;
};

}  // namespace slipstream
