#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/cpu/ops.h"
#include "runtime/aligned.h"
#include "runtime/thread_pool.h"

namespace slipstream {

// Draws from the rows of one matrix of logits; the team's threads take rows as they come. As in a program, claims carry the
// number of their job: a thread that comes late finds nothing.
class Sampler {
  public:
    Sampler(const KernelTable& kernels, std::shared_ptr<ThreadPool> pool) : kernels_(kernels), pool_(std::move(pool)) {}
    ~Sampler() { pool_->leave(); }
    Sampler(const Sampler&) = delete;
    Sampler& operator=(const Sampler&) = delete;

    // `which`: the row of `logits` [.., columns] of each entry. `ids` [columns]: the token of each column, ascending; null: the column.
    void draw(const float* logits, int columns, const std::int32_t* ids, const std::vector<int>& which, const std::vector<DrawRow>& rows,
              Drawn* out);
    Drawn draw_processed(const double* logits, int columns, const DrawRow& row);
    void logprobs(const float* logits, int columns, const std::vector<int>& which, std::vector<LogprobRow>& rows);

  private:
    using Piece = void (*)(Sampler& self, int thread, int index);

    void for_each(int count, Piece piece);
    void execute(int thread);
    void need_scratch(int columns);

    const KernelTable& kernels_;
    std::shared_ptr<ThreadPool> pool_;
    std::mutex running_;
    // Of the current job.
    Piece piece_ = nullptr;
    const float* logits_ = nullptr;
    int columns_ = 0;
    const std::int32_t* ids_ = nullptr;
    const int* which_ = nullptr;
    const DrawRow* draw_rows_ = nullptr;
    Drawn* drawn_ = nullptr;
    LogprobRow* logprob_rows_ = nullptr;
    std::atomic<std::uint64_t> claims_{0};  // job, number of pieces, next piece
    std::atomic<std::uint64_t> open_{0};    // pieces that are not done
    std::atomic<std::uint32_t> job_{0};
    std::vector<Aligned<Ranked>> scratch_;  // by thread
    int scratch_columns_ = 0;
};

}  // namespace slipstream
