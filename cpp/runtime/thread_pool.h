#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace slipstream {

// A fixed team: the calling thread is member 0. Between jobs members spin for a moment and then sleep.
class ThreadPool {
  public:
    using Job = void (*)(void* context, int thread);

    explicit ThreadPool(int num_threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int size() const { return num_threads_; }

    // Runs job(context, thread) on every member and returns when all are done. One caller at a time (others wait).
    void run(Job job, void* context);

    // Inside a job: returns once every member has arrived. What they wrote before is visible after.
    void barrier(int thread);

  private:
    struct alignas(64) Arrival {
        std::atomic<std::uint32_t> count{0};
    };

    void member(int thread);
    bool wait_for_job(std::uint32_t seen);

    const int num_threads_;
    std::unique_ptr<Arrival[]> arrivals_;
    alignas(64) std::atomic<std::uint32_t> generation_{0};
    alignas(64) std::atomic<int> sleepers_{0};
    Job job_ = nullptr;
    void* context_ = nullptr;
    bool stopping_ = false;
    std::mutex mutex_, callers_;
    std::condition_variable wake_;
    std::vector<std::thread> threads_;
};

}  // namespace slipstream
