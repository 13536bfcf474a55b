#include "runtime/schedule.h"

#include <algorithm>

namespace slipstream {
namespace {

int first_chunk_of(const AttentionOp& op, int position) {
    return op.window != 0 && position >= op.window ? (position - op.window + 1) / kChunk : 0;
}

std::int64_t cost(const AttentionOp& op, const AttentionTask& task) {
    const int last = task.position + task.num_queries - 1;
    const int first = op.window != 0 && task.position >= op.window ? task.position - op.window + 1 : 0;
    const int from = std::max(first, task.first_chunk * kChunk), to = std::min(last + 1, (task.last_chunk + 1) * kChunk);
    return 16 + static_cast<std::int64_t>(std::max(to - from, 0)) * task.num_queries;
}

}  // namespace

bool ScheduleBuilder::fits(const AttentionOp& op) const {
    return op.num_heads == op_.num_heads && op.num_kv_heads == op_.num_kv_heads && op.head_dim == op_.head_dim &&
           op.window == op_.window;
}

AttentionSchedule ScheduleBuilder::build(const BatchRows& rows) {
    tasks_.clear();
    merges_.clear();
    num_parts_ = 0;
    bool write_first = false;
    for (int r = 0; r < rows.num_rows; ++r) write_first = write_first || rows.query_start[r + 1] - rows.query_start[r] > 1;
    // Fewer queries per task, then single chunks, until all threads have something to do.
    const std::int64_t wanted = num_threads_ > 1 ? 4 * num_threads_ : 0;
    block_ = query_block(op_);
    while (block_ > 1 && count_tasks(rows, true) < wanted) block_ /= 2;
    const bool split = count_tasks(rows, false) < wanted;
    for (int r = 0; r < rows.num_rows; ++r) add_row(rows, r, split);
    divide();
    const std::size_t floats = static_cast<std::size_t>(num_parts_) * static_cast<std::size_t>(part_floats(op_));
    if (floats > parts_capacity_) {
        parts_ = aligned_zeros<float>(floats);
        parts_capacity_ = floats;
    }
    AttentionSchedule schedule;
    schedule.tasks = tasks_.data();
    schedule.task_bounds = bounds_.data();
    schedule.merges = merges_.data();
    schedule.num_merges = static_cast<int>(merges_.size());
    schedule.parts = parts_.get();
    schedule.write_first = write_first;
    return schedule;
}

// Tasks of blocks of queries, in each chunk by itself or not.
std::int64_t ScheduleBuilder::count_tasks(const BatchRows& rows, bool split) const {
    std::int64_t count = 0;
    for (int r = 0; r < rows.num_rows; ++r) {
        const int n = rows.query_start[r + 1] - rows.query_start[r], last = rows.kv_len[r] - 1;
        count += static_cast<std::int64_t>((n + block_ - 1) / block_) * (split ? last / kChunk - first_chunk_of(op_, last - n + 1) + 1 : 1);
    }
    return count * op_.num_kv_heads;
}

void ScheduleBuilder::add_row(const BatchRows& rows, int row, bool split) {
    const int begin = rows.query_start[row], n = rows.query_start[row + 1] - begin, start = rows.kv_len[row] - n;
    for (int head = 0; head < op_.num_kv_heads; ++head) {
        for (int i = 0; i < n; i += block_) {
            AttentionTask task;
            task.row = row;
            task.kv_head = head;
            task.token = begin + i;
            task.num_queries = std::min(block_, n - i);
            task.position = start + i;
            const int first = first_chunk_of(op_, task.position), last = (task.position + task.num_queries - 1) / kChunk;
            task.first_chunk = first;
            task.last_chunk = last;
            task.part = -1;
            task.part_step = 0;
            if (!split || first == last) {
                tasks_.push_back(task);
                continue;
            }
            // Tasks of one chunk each; the parts of a query lie side by side.
            const int chunks = last - first + 1;
            task.part_step = chunks;
            for (int c = first; c <= last; ++c) {
                AttentionTask one = task;
                one.first_chunk = one.last_chunk = c;
                one.part = num_parts_ + c - first;
                tasks_.push_back(one);
            }
            for (int k = 0; k < task.num_queries; ++k) {
                merges_.push_back({task.token + k, head, task.position + k, num_parts_ + k * chunks, first});
            }
            num_parts_ += task.num_queries * chunks;
        }
    }
}

void ScheduleBuilder::divide() {
    std::int64_t total = 0;
    for (const AttentionTask& task : tasks_) total += cost(op_, task);
    bounds_.assign(static_cast<std::size_t>(num_threads_) + 1, static_cast<int>(tasks_.size()));
    bounds_[0] = 0;
    std::int64_t done = 0;
    int thread = 1;
    for (std::size_t i = 0; i < tasks_.size(); ++i) {
        // A task goes where its middle lies.
        const std::int64_t middle = done + cost(op_, tasks_[i]) / 2;
        while (thread < num_threads_ && middle * num_threads_ >= total * thread) bounds_[static_cast<std::size_t>(thread++)] = static_cast<int>(i);
        done += cost(op_, tasks_[i]);
    }
}

}  // namespace slipstream
