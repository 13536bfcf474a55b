#pragma once

#include <cstdint>

// Drawing tokens and log-probabilities from rows of logits. sampling/sampler.py and sampling/logprobs.py define the results.

namespace slipstream {

struct DrawRow {
    double temperature = 0.0;  // 0: the largest
    double top_p = 1.0, min_p = 0.0;
    std::int64_t top_k = 0;
    std::uint64_t seed = 0, position = 0;
};

enum class LogitsFault : int { None, NotANumber, PlusInfinity, MinusInfinity };

struct Drawn {
    std::int32_t token = -1;
    LogitsFault fault = LogitsFault::None;
};

struct Ranked {
    double value;
    double weight;  // e^value, where it is needed
    std::int32_t token;
};

struct LogprobRow {
    std::int32_t token = 0;
    int num_top = 0;
    // Out:
    LogitsFault fault = LogitsFault::None;
    double logprob = 0.0;
    std::int32_t rank = 0;
    Ranked* top = nullptr;  // [min(num_top, vocabulary)]
};

}  // namespace slipstream
