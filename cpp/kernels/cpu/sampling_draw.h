#pragma once

#include "kernels/cpu/sampling_ops.h"

// Draws from one row of logits: the largest sum of scaled logit and noise (Gumbel-max), over all tokens or those that the
// filters keep. What cannot win is left out before its noise is computed.

namespace slipstream::SLIPSTREAM_ISA {

struct Race {
    double best;
    std::int32_t token;
    void enter(double score, std::int32_t candidate) {
        if (score > best || (score == best && candidate < token)) {
            best = score;
            token = candidate;
        }
    }
};

// argmax of scaled logit + noise over all tokens. With u the uniform number of a token, its noise -log(-log u) is at most
// -log(1 - u): who has e^(scaled - best) < 1 - u cannot win, which float32 decides with a margin of one percent.
template <class X>
SLIPSTREAM_KERNEL std::int32_t race_all(const X* x, int n, const Scale& scale, NoiseKey key, std::int32_t first) {
    Race race{gumbel_of(noise_word(key, first)), first};
    const bool plain = scale.temperature > 1e-6 && scale.temperature < 1e6 && scale.peak > -1e30 && scale.peak < 1e30;
    const F32x8 factor = set(static_cast<float>(1.0 / scale.temperature));
    alignas(32) std::uint32_t words[16];
    const auto enter = [&](int i, std::uint32_t word) {
        const double s = scale(static_cast<double>(x[i]));
        if (s > -__builtin_inf()) race.enter(s + gumbel_of(word), i);
    };
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        noise_words(key, static_cast<std::uint32_t>(i) / 4, words);
        for (int k = 0; k < 16; k += 8) {
            int bits = 0xff;
            if (plain) {
                const F32x8 ahead = sub(mul(minus(x + i + k, scale.peak), factor), set(static_cast<float>(race.best)));
                bits = not_less(mul(exp(ahead), set(1.01f)), rest_of_unit(words + k));
            }
            for (; bits != 0; bits &= bits - 1) {
                const int j = k + __builtin_ctz(static_cast<unsigned>(bits));
                enter(i + j, words[j]);
            }
        }
    }
    if (i < n) {
        noise_words(key, static_cast<std::uint32_t>(i) / 4, words);
        for (int j = 0; i + j < n; ++j) enter(i + j, words[j]);
    }
    return race.token;
}

// argmax of value + noise over candidates. As in race_all: who has weight * e^-best < 1 - u cannot win.
SLIPSTREAM_KERNEL std::int32_t race(const Ranked* candidates, std::int64_t count, NoiseKey key) {
    Race race{-__builtin_inf(), INT32_MAX};
    double bar = 0.0;  // e^best
    for (std::int64_t i = 0; i < count; ++i) {
        const std::uint32_t word = noise_word(key, candidates[i].token);
        if (candidates[i].weight * 1.01 < static_cast<double>(~word) * 0x1p-32 * bar) continue;
        race.enter(candidates[i].value + gumbel_of(word), candidates[i].token);
        bar = race.best > 0.0 ? 1.0 / exp_double(-race.best) : exp_double(race.best);
    }
    return race.token;
}

constexpr double kReach = 6.0;  // what has less than e^-6 of the likeliest is never drafted

// Of a reduced vocabulary: column i is the token ids[i], ascending, and its noise is that token's. What is drawn is only a
// guess, so that what hardly ever is may be left out: drawing the noise of each token by itself would cost more than it brings.
// `scratch` [n].
SLIPSTREAM_KERNEL Drawn draw_reduced(const float* x, int n, const std::int32_t* ids, const DrawRow& row, Ranked* scratch) {
    const Peak peak = peak_of(x, n);
    if (peak.fault != LogitsFault::None) return {-1, peak.fault};
    if (row.temperature == 0.0) return {ids[peak.token], LogitsFault::None};
    const Scale scale{peak.value, row.temperature};
    double mass = 0.0;
    const bool filtered = row.top_k > 0 || row.top_p < 1.0 || row.min_p > 0.0;
    const std::int64_t kept = filtered ? keep(x, n, scale, row, scratch) : collect(x, n, scale, kReach, true, scratch, mass);
    for (std::int64_t i = 0; i < kept; ++i) scratch[i].token = ids[scratch[i].token];
    return {race(scratch, kept, {row.seed, row.position}), LogitsFault::None};
}

// `scratch` [n].
template <class X>
SLIPSTREAM_INLINE Drawn draw(const X* x, int n, const DrawRow& row, Ranked* scratch) {
    const Peak peak = peak_of(x, n);
    if (peak.fault != LogitsFault::None) return {-1, peak.fault};
    if (row.temperature == 0.0) return {peak.token, LogitsFault::None};
    const Scale scale{peak.value, row.temperature};
    const NoiseKey key{row.seed, row.position};
    if (row.top_k <= 0 && row.top_p >= 1.0 && row.min_p <= 0.0) return {race_all(x, n, scale, key, peak.token), LogitsFault::None};
    return {race(scratch, keep(x, n, scale, row, scratch), key), LogitsFault::None};
}

static Drawn run_draw(const float* x, int n, const DrawRow& row, Ranked* scratch) { return draw(x, n, row, scratch); }
static Drawn run_draw_reduced(const float* x, int n, const std::int32_t* ids, const DrawRow& row, Ranked* scratch) {
    return draw_reduced(x, n, ids, row, scratch);
}
static Drawn run_draw_processed(const double* x, int n, const DrawRow& row, Ranked* scratch) { return draw(x, n, row, scratch); }

}  // namespace slipstream::SLIPSTREAM_ISA
