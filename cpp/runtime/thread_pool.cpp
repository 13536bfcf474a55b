#include "runtime/thread_pool.h"

#include <unistd.h>

#include <chrono>

namespace slipstream {
namespace {

// Between two steps of a busy engine lies less than this.
constexpr std::chrono::microseconds kIdleSpin{500};

}  // namespace

void ThreadPool::pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

ThreadPool::ThreadPool(int num_threads)
    : num_threads_(num_threads),
      members_(std::make_unique<Member[]>(static_cast<std::size_t>(num_threads))),
      shared_(std::make_unique<Shared>()),
      process_(static_cast<int>(getpid())) {
    for (int i = 1; i < num_threads; ++i) shared_->threads.emplace_back([this, i] { member(i); });
}

ThreadPool::~ThreadPool() {
    if (forked()) {
        static_cast<void>(shared_.release());
        return;
    }
    stopping_.store(true);
    publish(nullptr, nullptr);
    for (std::thread& thread : shared_->threads) thread.join();
}

bool ThreadPool::forked() const { return num_threads_ > 1 && static_cast<int>(getpid()) != process_; }

void ThreadPool::publish(Job job, void* context) {
    generation_.fetch_add(1, std::memory_order_seq_cst);
    job_.store(job, std::memory_order_seq_cst);
    context_.store(context, std::memory_order_seq_cst);
    generation_.fetch_add(1, std::memory_order_seq_cst);
    if (idle_.load(std::memory_order_seq_cst) != 0) {
        { const std::lock_guard<std::mutex> lock(shared_->idle_mutex); }
        shared_->idle_wake.notify_all();
    }
}

void ThreadPool::run(Job job, void* context) {
    if (forked()) {
        for (int i = 0; i < num_threads_; ++i) job(context, i);
        return;
    }
    const std::lock_guard<std::mutex> caller(callers_);
    if (num_threads_ > 1) publish(job, context);
    job(context, 0);
    const std::uint32_t generation = generation_.load(std::memory_order_relaxed);
    for (int i = 1; i < num_threads_; ++i) {
        wait([this, i, generation] { return members_[static_cast<std::size_t>(i)].finished.load(std::memory_order_seq_cst) == generation; });
    }
}

void ThreadPool::share(Job job, void* context) {
    if (forked()) return job(context, 0);
    const std::lock_guard<std::mutex> caller(callers_);
    if (num_threads_ > 1) publish(job, context);
    job(context, 0);
}

void ThreadPool::leave() {
    if (num_threads_ == 1 || forked()) return;
    const std::lock_guard<std::mutex> caller(callers_);
    publish(nullptr, nullptr);
    for (int i = 1; i < num_threads_; ++i) {
        wait([this, i] { return !members_[static_cast<std::size_t>(i)].inside.load(std::memory_order_seq_cst); });
    }
}

void ThreadPool::sleep(bool (*done)(void*), void* context) {
    std::unique_lock<std::mutex> lock(shared_->wait_mutex);
    waiting_.fetch_add(1, std::memory_order_seq_cst);
    shared_->wait_wake.wait(lock, [&] { return done(context); });
    waiting_.fetch_sub(1, std::memory_order_seq_cst);
}

void ThreadPool::wake_sleepers() {
    { const std::lock_guard<std::mutex> lock(shared_->wait_mutex); }
    shared_->wait_wake.notify_all();
}

// The generation of a job that was not seen before.
std::uint32_t ThreadPool::next_job(std::uint32_t seen) {
    const auto fresh = [&] {
        const std::uint32_t now = generation_.load(std::memory_order_seq_cst);
        return now != seen && now % 2 == 0;
    };
    const auto until = std::chrono::steady_clock::now() + kIdleSpin;
    do {
        for (int i = 0; i < 64; ++i) {
            if (fresh()) return generation_.load(std::memory_order_seq_cst);
            pause();
        }
    } while (std::chrono::steady_clock::now() < until);
    std::unique_lock<std::mutex> lock(shared_->idle_mutex);
    idle_.fetch_add(1, std::memory_order_seq_cst);
    shared_->idle_wake.wait(lock, fresh);
    idle_.fetch_sub(1, std::memory_order_seq_cst);
    return generation_.load(std::memory_order_seq_cst);
}

void ThreadPool::member(int thread) {
    Member& self = members_[static_cast<std::size_t>(thread)];
    std::uint32_t seen = 0;
    while (!stopping_.load()) {
        const std::uint32_t generation = next_job(seen);
        self.inside.store(true, std::memory_order_seq_cst);
        const Job job = job_.load(std::memory_order_seq_cst);
        void* const context = context_.load(std::memory_order_seq_cst);
        // Otherwise the two may not belong together, or the job's owner may be gone.
        const bool whole = generation % 2 == 0 && generation_.load(std::memory_order_seq_cst) == generation;
        if (whole) {
            if (job != nullptr) job(context, thread);
            seen = generation;
            self.finished.store(generation, std::memory_order_seq_cst);
        }
        self.inside.store(false, std::memory_order_seq_cst);
        wake();
    }
}

void ThreadPool::set_stall(int thread, int microseconds) {
    stall_microseconds_.store(microseconds);
    stalled_.store(microseconds > 0 ? thread : -1);
}

void ThreadPool::stall(std::uint32_t moment) const {
    if ((moment * 2654435761U >> 16) % 7 == 0) std::this_thread::sleep_for(std::chrono::microseconds(stall_microseconds_.load()));
}

}  // namespace slipstream
