#include "runtime/schedule.h"

#include <algorithm>

namespace slipstream {
namespace {

int first_chunk_of(const AttentionOp& op, int position) {
    return op.window != 0 && position >= op.window ? (position - op.window + 1) / kChunk : 0;
}

// So many times the largest task is what each thread shall have, so that the last to end is not far behind.
constexpr int kTasksPerThread = 4, kBlocksPerThread = 8;
constexpr int kLeastBlock = 8;  // queries: with fewer, reading and converting keys and values costs more than waiting
constexpr int kReading = 2;     // what that costs, in queries

std::int64_t cost(const AttentionOp& op, const AttentionTask& task) {
    const int last = task.position + task.num_queries - 1;
    const int first = op.window != 0 && task.position >= op.window ? task.position - op.window + 1 : 0;
    const int from = std::max(first, task.first_chunk * kChunk), to = std::min(last + 1, (task.last_chunk + 1) * kChunk);
    return 16 + static_cast<std::int64_t>(std::max(to - from, 0)) * (task.num_queries + kReading);
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
    block_ = query_block(op_);
    bool split = false;
    if (num_threads_ > 1) {
        while (block_ >= 2 * kLeastBlock && !divisible(rows, false, kBlocksPerThread)) block_ /= 2;
        split = !divisible(rows, false, kTasksPerThread);
        while (split && block_ > 1 && !divisible(rows, true, kTasksPerThread)) block_ /= 2;
    }
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

// Whether all work, cut into blocks of queries and maybe chunks of keys, is `per_thread` times a thread's largest task.
bool ScheduleBuilder::divisible(const BatchRows& rows, bool split, int per_thread) const {
    std::int64_t total = 0, largest = 0;
    for (int r = 0; r < rows.num_rows; ++r) {
        const int n = rows.query_start[r + 1] - rows.query_start[r];
        const std::int64_t keys = op_.window != 0 ? std::min(rows.kv_len[r], op_.window + n) : rows.kv_len[r];
        const int block = std::min(block_, n);
        total += keys * (n + (n + block_ - 1) / block_ * kReading);
        largest = std::max(largest, (split ? std::min<std::int64_t>(keys, kChunk) : keys) * (block + kReading));
    }
    return total * op_.num_kv_heads >= largest * num_threads_ * per_thread;
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

// Large tasks first, so that whoever is ready early finds small ones that others have not begun. Among large ones, and among
// small ones, a thread's tasks are neighbours: these read the same keys and values, or such as lie side by side in memory.
void ScheduleBuilder::divide() {
    costs_.clear();
    std::int64_t largest = 0;
    for (const AttentionTask& task : tasks_) {
        costs_.push_back(cost(op_, task));
        largest = std::max(largest, costs_.back());
    }
    const std::size_t num = tasks_.size(), threads = static_cast<std::size_t>(num_threads_);
    owners_.resize(num);
    bounds_.assign(threads + 1, 0);
    for (const bool large : {true, false}) {
        std::int64_t total = 0, before = 0;
        for (const std::int64_t each : costs_) total += (each * 2 >= largest) == large ? each : 0;
        for (std::size_t i = 0; i < num; ++i) {
            if ((costs_[i] * 2 >= largest) != large) continue;
            // A task goes where its middle lies.
            const auto owner = static_cast<std::size_t>((before + costs_[i] / 2) * num_threads_ / total);
            before += costs_[i];
            owners_[i] = static_cast<int>(owner);
            ++bounds_[owner + 1];
        }
    }
    for (std::size_t t = 0; t < threads; ++t) bounds_[t + 1] += bounds_[t];
    next_.assign(bounds_.begin(), bounds_.end() - 1);
    sorted_.resize(num);
    for (const bool large : {true, false}) {
        for (std::size_t i = 0; i < num; ++i) {
            if ((costs_[i] * 2 >= largest) == large) sorted_[static_cast<std::size_t>(next_[static_cast<std::size_t>(owners_[i])]++)] = tasks_[i];
        }
    }
    tasks_.swap(sorted_);
}

}  // namespace slipstream
