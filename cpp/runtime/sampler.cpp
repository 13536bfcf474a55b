#include "runtime/sampler.h"

#include <algorithm>

namespace slipstream {
namespace {

constexpr int kMaxPieces = 0xffff;

}  // namespace

void Sampler::need_scratch(int columns) {
    if (scratch_columns_ >= columns) return;
    scratch_.clear();
    for (int t = 0; t < pool_->size(); ++t) scratch_.push_back(aligned_zeros<Ranked>(static_cast<std::size_t>(columns)));
    scratch_columns_ = columns;
}

void Sampler::draw(const float* logits, int columns, const std::int32_t* ids, const std::vector<int>& which,
                   const std::vector<DrawRow>& rows, Drawn* out) {
    const std::lock_guard<std::mutex> lock(running_);
    need_scratch(columns);
    logits_ = logits;
    columns_ = columns;
    ids_ = ids;
    for (std::size_t begin = 0; begin < rows.size(); begin += kMaxPieces) {
        which_ = which.data() + begin;
        draw_rows_ = rows.data() + begin;
        drawn_ = out + begin;
        for_each(static_cast<int>(std::min<std::size_t>(kMaxPieces, rows.size() - begin)), [](Sampler& self, int thread, int i) {
            const float* const x = self.logits_ + static_cast<std::ptrdiff_t>(self.which_[i]) * self.columns_;
            Ranked* const scratch = self.scratch_[static_cast<std::size_t>(thread)].get();
            const DrawRow& row = self.draw_rows_[i];
            self.drawn_[i] = self.ids_ == nullptr ? self.kernels_.draw(x, self.columns_, row, scratch)
                                                  : self.kernels_.draw_reduced(x, self.columns_, self.ids_, row, scratch);
        });
    }
}

Drawn Sampler::draw_processed(const double* logits, int columns, const DrawRow& row) {
    const std::lock_guard<std::mutex> lock(running_);
    need_scratch(columns);
    return kernels_.draw_processed(logits, columns, row, scratch_[0].get());
}

void Sampler::logprobs(const float* logits, int columns, const std::vector<int>& which, std::vector<LogprobRow>& rows) {
    const std::lock_guard<std::mutex> lock(running_);
    need_scratch(columns);
    logits_ = logits;
    columns_ = columns;
    for (std::size_t begin = 0; begin < rows.size(); begin += kMaxPieces) {
        which_ = which.data() + begin;
        logprob_rows_ = rows.data() + begin;
        for_each(static_cast<int>(std::min<std::size_t>(kMaxPieces, rows.size() - begin)), [](Sampler& self, int thread, int i) {
            const float* const x = self.logits_ + static_cast<std::ptrdiff_t>(self.which_[i]) * self.columns_;
            self.kernels_.logprob(x, self.columns_, self.logprob_rows_[i], self.scratch_[static_cast<std::size_t>(thread)].get());
        });
    }
}

void Sampler::for_each(int count, Piece piece) {
    if (count == 0) return;
    if (count == 1 || pool_->size() == 1) {
        for (int i = 0; i < count; ++i) piece(*this, 0, i);
        return;
    }
    piece_ = piece;
    open_.store(static_cast<std::uint64_t>(count), std::memory_order_relaxed);
    const std::uint32_t job = job_.load(std::memory_order_relaxed) + 1;
    claims_.store(static_cast<std::uint64_t>(job) << 32 | static_cast<std::uint64_t>(count) << 16, std::memory_order_release);
    job_.store(job, std::memory_order_seq_cst);
    pool_->share([](void* self, int thread) { static_cast<Sampler*>(self)->execute(thread); }, this);
    pool_->wait([this] { return open_.load(std::memory_order_seq_cst) == 0; });
}

void Sampler::execute(int thread) {
    const std::uint32_t job = job_.load(std::memory_order_seq_cst);
    if (pool_->stalls(thread)) pool_->stall(job);
    std::uint64_t value = claims_.load(std::memory_order_acquire);
    for (;;) {
        const auto next = static_cast<int>(value & 0xffffU), count = static_cast<int>(value >> 16 & 0xffffU);
        if (static_cast<std::uint32_t>(value >> 32) != job || next == count) return;
        if (!claims_.compare_exchange_weak(value, value + 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
        piece_(*this, thread, next);
        if (open_.fetch_sub(1, std::memory_order_seq_cst) == 1) pool_->wake();
        value = claims_.load(std::memory_order_acquire);
    }
}

}  // namespace slipstream
