#pragma once

#include "kernels/cpu/math.h"
#include "kernels/cpu/sampling.h"
#include "kernels/cpu/sampling_math.h"

// One row of logits at a time, x [n], float32 from a model or float64 from processors. Nothing sorts the vocabulary:
// candidates are what lies above a threshold, which falls until enough are found, and partitions find the last one to keep.
// Thresholds and bounds only leave out what the exact values would leave out too.

namespace slipstream::SLIPSTREAM_ISA {

struct Peak {
    double value;
    std::int32_t token;
    LogitsFault fault;
};

SLIPSTREAM_INLINE F32x8 minus(const float* x, double peak) { return sub(load(x), set(static_cast<float>(peak))); }
SLIPSTREAM_INLINE F32x8 minus(const double* x, double peak) {
    float narrow[8];
    for (int i = 0; i < 8; ++i) narrow[i] = static_cast<float>(x[i] - peak);
    return load(narrow);
}
// Bit i: x[i] >= limit.
SLIPSTREAM_INLINE int at_least(const float* x, float limit) { return not_less(load(x), set(limit)); }
SLIPSTREAM_INLINE int at_least(const double* x, double limit) {
    int bits = 0;
    for (int i = 0; i < 8; ++i) bits |= (x[i] >= limit ? 1 : 0) << i;
    return bits;
}

SLIPSTREAM_KERNEL double largest_of(const float* x, int n, bool& nan) {
    F32x8 best[4];
    for (F32x8& b : best) b = set(-__builtin_inff());
    int bad = 0, i = 0;
    for (; i + 32 <= n; i += 32) {
        for (int k = 0; k < 4; ++k) {
            const F32x8 v = load(x + i + 8 * k);
            bad |= not_a_number(v);
            best[k] = max(best[k], v);
        }
    }
    float m = largest(max(max(best[0], best[1]), max(best[2], best[3])));
    for (; i < n; ++i) {
        bad |= x[i] != x[i] ? 1 : 0;
        m = x[i] > m ? x[i] : m;
    }
    nan = bad != 0;
    return static_cast<double>(m);
}

SLIPSTREAM_KERNEL double largest_of(const double* x, int n, bool& nan) {
    double m = -__builtin_inf();
    int bad = 0;
    for (int i = 0; i < n; ++i) {
        bad |= x[i] != x[i] ? 1 : 0;
        m = x[i] > m ? x[i] : m;
    }
    nan = bad != 0;
    return m;
}

template <class X>
SLIPSTREAM_INLINE Peak peak_of(const X* x, int n) {
    bool nan = false;
    Peak peak{largest_of(x, n, nan), 0, LogitsFault::None};
    if (nan) peak.fault = LogitsFault::NotANumber;
    else if (peak.value == __builtin_inf()) peak.fault = LogitsFault::PlusInfinity;
    else if (peak.value == -__builtin_inf()) peak.fault = LogitsFault::MinusInfinity;
    if (peak.fault != LogitsFault::None) return peak;
    const X value = static_cast<X>(peak.value);
    int i = 0;
    while (i + 8 <= n && at_least(x + i, value) == 0) i += 8;
    while (x[i] < value) ++i;
    peak.token = i;
    return peak;
}

SLIPSTREAM_INLINE bool before(const Ranked& a, const Ranked& b) {
    return a.value > b.value || (a.value == b.value && a.token < b.token);
}

SLIPSTREAM_INLINE void sift(Ranked* heap, std::int64_t n, std::int64_t i) {
    const Ranked item = heap[i];
    for (std::int64_t child = 2 * i + 1; child < n; child = 2 * i + 1) {
        if (child + 1 < n && before(heap[child + 1], heap[child])) ++child;
        if (!before(heap[child], item)) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = item;
}

SLIPSTREAM_KERNEL void make_heap(Ranked* heap, std::int64_t n) {
    for (std::int64_t i = n / 2 - 1; i >= 0; --i) sift(heap, n, i);
}

// Takes the first off; it is then at heap[n - 1].
SLIPSTREAM_INLINE void pop(Ranked* heap, std::int64_t n) {
    const Ranked first = heap[0];
    heap[0] = heap[n - 1];
    heap[n - 1] = first;
    sift(heap, n - 1, 0);
}

struct Scale {
    double peak, temperature;
    double operator()(double x) const { return (x - peak) / temperature; }
};

// Tokens whose scaled logit is at least -span, and above -inf, ascending; their number. `weighs`: with their weights, whose
// sum, in this order, goes to `mass`; else the weights are 1, which none exceeds.
template <class X>
SLIPSTREAM_KERNEL std::int64_t collect(const X* x, int n, const Scale& scale, double span, bool weighs, Ranked* out, double& mass) {
    // Below what any value has that is scaled to -span.
    const double edge = scale.peak - span * scale.temperature * 1.0001;
    const double limit = edge - __builtin_fabs(edge) * 1e-6 - __builtin_fabs(scale.peak) * 1e-6 - 1e-30;
    const X lowest = limit > -3e38 ? static_cast<X>(limit) : static_cast<X>(-__builtin_inf());
    std::int64_t count = 0;
    mass = 0.0;
    const auto consider = [&](int i) {
        const double s = scale(static_cast<double>(x[i]));
        if (s < -span || s == -__builtin_inf()) return;
        const double weight = weighs ? exp_double(s) : 1.0;
        mass += weight;
        out[count++] = {s, weight, i};
    };
    int i = 0;
    for (; i + 8 <= n; i += 8) {
        for (int bits = at_least(x + i, lowest); bits != 0; bits &= bits - 1) consider(i + __builtin_ctz(static_cast<unsigned>(bits)));
    }
    for (; i < n; ++i) consider(i);
    return count;
}

// The sum of e^(scaled logit).
template <class X>
SLIPSTREAM_KERNEL double mass_of(const X* x, int n, const Scale& scale) {
    double lanes_[kSumLanes];
    for (double& lane : lanes_) lane = 0.0;
    int i = 0;
    if (scale.temperature == 1.0) {
        for (; i + kSumLanes <= n; i += kSumLanes) {
            for (int k = 0; k < kSumLanes; ++k) lanes_[k] += exp_double(static_cast<double>(x[i + k]) - scale.peak);
        }
    } else {
        for (; i + kSumLanes <= n; i += kSumLanes) {
            for (int k = 0; k < kSumLanes; ++k) lanes_[k] += exp_double(scale(static_cast<double>(x[i + k])));
        }
    }
    for (int k = 0; i + k < n; ++k) lanes_[k] += exp_double(scale(static_cast<double>(x[i + k])));
    return fold(lanes_);
}

SLIPSTREAM_KERNEL double mass_of(const Ranked* items, std::int64_t n) {
    double lanes_[kSumLanes];
    for (double& lane : lanes_) lane = 0.0;
    for (std::int64_t i = 0; i < n; ++i) lanes_[i % kSumLanes] += items[i].weight;
    return fold(lanes_);
}

SLIPSTREAM_INLINE void swap(Ranked& a, Ranked& b) {
    const Ranked t = a;
    a = b;
    b = t;
}

// Puts what ranks before the middle one of three samples in front of it; where that one then is.
SLIPSTREAM_INLINE std::int64_t partition(Ranked* items, std::int64_t first, std::int64_t last) {
    const std::int64_t middle = first + (last - first) / 2;
    if (before(items[middle], items[first])) swap(items[middle], items[first]);
    if (before(items[last - 1], items[middle])) {
        swap(items[last - 1], items[middle]);
        if (before(items[middle], items[first])) swap(items[middle], items[first]);
    }
    swap(items[middle], items[last - 1]);
    std::int64_t at = first;
    for (std::int64_t i = first; i < last - 1; ++i) {
        if (before(items[i], items[last - 1])) swap(items[i], items[at++]);
    }
    swap(items[at], items[last - 1]);
    return at;
}

SLIPSTREAM_KERNEL void sort(Ranked* items, std::int64_t first, std::int64_t last) {
    make_heap(items + first, last - first);
    for (std::int64_t n = last - first; n > 0; --n) pop(items + first, n);
    for (std::int64_t i = first, k = last - 1; i < k; ++i, --k) swap(items[i], items[k]);
}

constexpr std::int64_t kFew = 24;

// Puts the `count` that rank first in front, in no order.
SLIPSTREAM_KERNEL void select(Ranked* items, std::int64_t size, std::int64_t count) {
    std::int64_t first = 0, last = size;
    while (last - first > kFew) {
        const std::int64_t at = partition(items, first, last);
        if (at == count || at + 1 == count) return;
        if (at > count) last = at;
        else first = at + 1;
    }
    sort(items, first, last);
}

// How many of the first in rank it takes for their sum, in rank order, to reach `target`; 0 when all do not. They are then in
// front. Sums in another order tell that too, unless they come close to the target: then everything is ranked.
SLIPSTREAM_KERNEL std::int64_t reach(Ranked* items, std::int64_t size, double target, double total) {
    const double doubt = total * 1e-10;
    double mass = 0.0;
    std::int64_t first = 0, last = size;
    while (last - first > kFew) {
        const std::int64_t at = partition(items, first, last);
        double part = 0.0;
        for (std::int64_t i = first; i <= at; ++i) part += items[i].weight;
        if (mass + part >= target) {
            last = at + 1;
        } else {
            mass += part;
            first = at + 1;
        }
    }
    sort(items, first, last);
    for (std::int64_t i = first; i < last; ++i) {
        const double next = mass + items[i].weight;
        if (next >= target) {
            if (next - target > doubt && target - mass > doubt) return i + 1;
            break;
        }
        mass = next;
    }
    sort(items, 0, size);
    mass = 0.0;
    for (std::int64_t i = 0; i < size; ++i) {
        mass += items[i].weight;
        if (mass >= target) return i + 1;
    }
    return 0;
}

constexpr double kEverything = __builtin_inf();

// What the filters keep is put in front of `scratch`; its number.
template <class X>
SLIPSTREAM_INLINE std::int64_t keep(const X* x, int n, const Scale& scale, const DrawRow& row, Ranked* scratch) {
    double mass = 0.0;
    if (row.min_p <= 0.0 && row.top_k <= 0) {
        const double total = mass_of(x, n, scale), target = row.top_p * total;
        for (double span = 3.0;; span *= 1.5) {
            if (span > 800.0) span = kEverything;
            const std::int64_t size = collect(x, n, scale, span, true, scratch, mass);
            if (span != kEverything && mass < target * (1.0 - 1e-9)) continue;
            const std::int64_t kept = reach(scratch, size, target, total);
            if (kept > 0) return kept;
            if (span == kEverything) return size;
        }
    }
    std::int64_t size = 0;
    if (row.min_p > 0.0) {
        const double span = -log_double(row.min_p < 1e-300 ? 1e-300 : row.min_p) + 1e-6;
        const std::int64_t candidates = collect(x, n, scale, span > 690.0 ? kEverything : span, true, scratch, mass);
        for (std::int64_t i = 0; i < candidates; ++i) {
            if (scratch[i].weight >= row.min_p) scratch[size++] = scratch[i];
        }
    } else {
        for (double span = 2.0;; span *= 1.5) {
            if (span > 1e4) span = kEverything;
            size = collect(x, n, scale, span, row.top_p < 1.0, scratch, mass);
            if (size >= row.top_k || span == kEverything) break;
        }
    }
    if (row.top_k > 0 && row.top_k < size) {
        select(scratch, size, row.top_k);
        size = row.top_k;
    }
    if (row.top_p >= 1.0) return size;
    if (row.top_k > 0) sort(scratch, 0, size);  // the order in which the definition sums
    const double total = mass_of(scratch, size);
    const std::int64_t kept = reach(scratch, size, row.top_p * total, total);
    return kept > 0 ? kept : size;
}

// `scratch` [n].
static void run_logprob(const float* x, int n, LogprobRow& row, Ranked* scratch) {
    const Peak peak = peak_of(x, n);
    row.fault = peak.fault;
    if (peak.fault != LogitsFault::None) return;
    const double log_total = peak.value + log_double(mass_of(x, n, {peak.value, 1.0}));
    const float chosen = x[row.token];
    std::int32_t above = 0, equal = 0;
    for (int i = 0; i < n; ++i) above += x[i] > chosen ? 1 : 0;
    for (int i = 0; i < row.token; ++i) equal += x[i] == chosen ? 1 : 0;
    row.rank = 1 + above + equal;
    row.logprob = static_cast<double>(chosen) - log_total;
    if (row.num_top == 0) return;
    const std::int64_t wanted = row.num_top < n ? row.num_top : n;
    std::int64_t size = 0;
    for (double span = 4.0; size < wanted; span *= 1.5) {
        size = 0;
        const float limit = span > 1e4 ? -__builtin_inff() : static_cast<float>(peak.value - span);
        int i = 0;
        for (; i + 8 <= n; i += 8) {
            for (int bits = at_least(x + i, limit); bits != 0; bits &= bits - 1) {
                const int at = i + __builtin_ctz(static_cast<unsigned>(bits));
                scratch[size++] = {static_cast<double>(x[at]), 1.0, at};
            }
        }
        for (; i < n; ++i) {
            if (x[i] >= limit) scratch[size++] = {static_cast<double>(x[i]), 1.0, i};
        }
    }
    select(scratch, size, wanted);
    sort(scratch, 0, wanted);
    for (std::int64_t i = 0; i < wanted; ++i) row.top[i] = {scratch[i].value - log_total, 0.0, scratch[i].token};
}

}  // namespace slipstream::SLIPSTREAM_ISA
