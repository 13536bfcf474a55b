// Thousands of jobs with members that come late, callers that take turns and jobs whose context dies right after `leave`.
// Built with ThreadSanitizer (scripts/native_sanitize.sh); also counts that every member ran every job of `run`.

#include <atomic>
#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

#include "runtime/thread_pool.h"

using slipstream::ThreadPool;

namespace {

struct Counts {
    explicit Counts(int size) : of(static_cast<std::size_t>(size)) {}
    std::vector<long> of;  // one per member, written by that member only
};

void count(void* context, int thread) { ++static_cast<Counts*>(context)->of[static_cast<std::size_t>(thread)]; }

// Pieces that members claim, as a program's phases are: the owner waits until all are done, not until all members came.
struct Claims {
    std::atomic<int> next{0}, done{0};
    std::vector<int> pieces = std::vector<int>(64);
    ThreadPool* pool = nullptr;
};

void claim(void* context, int thread) {
    Claims& claims = *static_cast<Claims*>(context);
    const int all = static_cast<int>(claims.pieces.size());
    for (int piece; (piece = claims.next.fetch_add(1)) < all;) {
        if (claims.pool->stalls(thread)) claims.pool->stall(static_cast<std::uint32_t>(piece));
        claims.pieces[static_cast<std::size_t>(piece)] += 1;
        if (claims.done.fetch_add(1) + 1 == all) claims.pool->wake();
    }
    if (thread == 0) claims.pool->wait([&claims, all] { return claims.done.load() == all; });
}

bool run_jobs(int size, int jobs) {
    ThreadPool pool(size);
    Counts counts(size);
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 2; ++caller) {
        callers.emplace_back([&pool, &counts, jobs] {
            for (int i = 0; i < jobs; ++i) pool.run(count, &counts);
        });
    }
    for (std::thread& caller : callers) caller.join();
    for (long of : counts.of) {
        if (of != 2L * jobs) return false;
    }
    return true;
}

bool share_jobs(int size, int jobs) {
    ThreadPool pool(size);
    pool.set_stall(1, 200);
    for (int i = 0; i < jobs; ++i) {
        auto claims = std::make_unique<Claims>();
        claims->pool = &pool;
        pool.share(claim, claims.get());
        for (int piece : claims->pieces) {
            if (piece != 1) return false;
        }
        pool.leave();
    }
    return true;
}

}  // namespace

int main() {
    for (int size : {1, 2, 3, 5}) {
        if (!run_jobs(size, 400) || !share_jobs(size, 150)) {
            std::printf("a team of %d lost or repeated work\n", size);
            return 1;
        }
    }
    std::printf("thread team: no race, nothing lost or repeated\n");
    return 0;
}
