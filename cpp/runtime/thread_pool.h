#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace slipstream {

// A team of threads: whoever calls `run` or `share` is member 0. Between jobs members spin for a moment and then sleep.
// A fork copies the team without its members: in the child the caller does all the work, and nobody is waited for.
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

    // Runs job(context, 0) here and offers the job to the others, and returns when ours is done: others may come late, or
    // still be inside. The job itself must make sure that they then find nothing to do; `leave` says when they are gone.
    void share(Job job, void* context);

    // Returns once no member is inside a job that was shared before.
    void leave();

    // Waits, spinning at first, until done() holds; whoever makes it true calls `wake` after that.
    template <class Done>
    void wait(Done done) {
        for (int i = 0; i < kSpins; ++i) {
            if (done()) return;
            pause();
        }
        sleep([](void* context) { return (*static_cast<Done*>(context))(); }, &done);
    }
    void wake() {
        if (waiting_.load(std::memory_order_seq_cst) != 0) wake_sleepers();
    }

    // For tests: member `thread` loses its processor for so long, at moments that differ from job to job; 0: never.
    void set_stall(int thread, int microseconds);
    bool stalls(int thread) const { return stalled_.load(std::memory_order_relaxed) == thread; }
    void stall(std::uint32_t moment) const;

  private:
    // About fifty microseconds, as long as it takes to wake a thread that sleeps; much shorter than a slice of processor time.
    static constexpr int kSpins = 1500;
    struct alignas(64) Member {
        std::atomic<bool> inside{false};
        std::atomic<std::uint32_t> finished{0};
    };

    static void pause();
    void sleep(bool (*done)(void*), void* context);
    void wake_sleepers();
    void publish(Job job, void* context);
    bool forked() const;
    void member(int thread);
    std::uint32_t next_job(std::uint32_t seen);

    const int num_threads_;
    std::unique_ptr<Member[]> members_;
    // Odd while `job_` and `context_` change.
    alignas(64) std::atomic<std::uint32_t> generation_{0};
    std::atomic<Job> job_{nullptr};
    std::atomic<void*> context_{nullptr};
    alignas(64) std::atomic<int> idle_{0}, waiting_{0};
    std::atomic<int> stalled_{-1}, stall_microseconds_{0};
    std::atomic<bool> stopping_{false};
    std::mutex callers_;
    // What members hold or wait on. In a forked child it is never freed: destroying it would wait for them.
    struct Shared {
        std::mutex idle_mutex, wait_mutex;
        std::condition_variable idle_wake, wait_wake;
        std::vector<std::thread> threads;
    };
    std::unique_ptr<Shared> shared_;
    const int process_;
};

}  // namespace slipstream
