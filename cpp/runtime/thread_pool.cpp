#include "runtime/thread_pool.h"

#include <sched.h>

namespace slipstream {
namespace {

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// A barrier is passed in a fraction of a microsecond unless a member has lost its processor: then give ours away.
constexpr int kSpinsBeforeYield = 30000;
// Between two steps of a busy engine lies less than a millisecond.
constexpr int kSpinsBeforeSleep = 60000;

}  // namespace

ThreadPool::ThreadPool(int num_threads)
    : num_threads_(num_threads), arrivals_(std::make_unique<Arrival[]>(static_cast<std::size_t>(num_threads))) {
    for (int i = 1; i < num_threads; ++i) threads_.emplace_back([this, i] { member(i); });
}

ThreadPool::~ThreadPool() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        stopping_ = true;
        generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run(Job job, void* context) {
    const std::lock_guard<std::mutex> caller(callers_);
    job_ = job;
    context_ = context;
    generation_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) != 0) {
        { const std::lock_guard<std::mutex> lock(mutex_); }
        wake_.notify_all();
    }
    job(context, 0);
    barrier(0);
}

void ThreadPool::barrier(int thread) {
    if (num_threads_ == 1) return;
    const std::uint32_t target = arrivals_[thread].count.load(std::memory_order_relaxed) + 1;
    arrivals_[thread].count.store(target, std::memory_order_release);
    for (int i = 0; i < num_threads_; ++i) {
        int spins = 0;
        while (static_cast<std::int32_t>(arrivals_[i].count.load(std::memory_order_acquire) - target) < 0) {
            pause();
            if (++spins > kSpinsBeforeYield) sched_yield();
        }
    }
}

bool ThreadPool::wait_for_job(std::uint32_t seen) {
    for (int spins = 0; spins < kSpinsBeforeSleep; ++spins) {
        if (generation_.load(std::memory_order_acquire) != seen) return !stopping_;
        pause();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    wake_.wait(lock, [&] { return generation_.load(std::memory_order_seq_cst) != seen; });
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    return !stopping_;
}

void ThreadPool::member(int thread) {
    std::uint32_t seen = 0;
    while (wait_for_job(seen)) {
        ++seen;
        job_(context_, thread);
        barrier(thread);
    }
}

}  // namespace slipstream
