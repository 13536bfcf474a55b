#include "bind/sampler.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bind/cpu_kernels.h"
#include "runtime/sampler.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using slipstream::Drawn;
using slipstream::DrawRow;
using slipstream::LogitsFault;
using slipstream::LogprobRow;
using slipstream::Ranked;

using Logits = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Ids = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Scores = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
// temperature, top_k, top_p, min_p, seed, position
using Draw = std::tuple<double, std::int64_t, double, double, std::uint64_t, std::uint64_t>;

DrawRow row_of(const Draw& draw) {
    DrawRow row;
    std::tie(row.temperature, row.top_k, row.top_p, row.min_p, row.seed, row.position) = draw;
    if (!(row.temperature >= 0.0) || !(row.min_p >= 0.0) || !(row.top_p > 0.0)) throw std::invalid_argument("temperature and min_p are at least 0, top_p above");
    return row;
}

const char* name_of(LogitsFault fault) {
    switch (fault) {
        case LogitsFault::NotANumber: return "nan";
        case LogitsFault::PlusInfinity: return "+inf";
        case LogitsFault::MinusInfinity: return "-inf";
        default: return "";
    }
}

int columns_of(std::size_t columns) {
    if (columns < 1 || columns > INT32_MAX) throw std::invalid_argument("logits have at least one column");
    return static_cast<int>(columns);
}

int checked_row(int row, std::size_t rows) {
    if (row < 0 || static_cast<std::size_t>(row) >= rows) throw std::out_of_range("row " + std::to_string(row) + " of " + std::to_string(rows));
    return row;
}

class Sampler {
  public:
    Sampler(std::shared_ptr<slipstream::ThreadPool> pool, const std::string& kernels) : sampler_(slipstream::kernels_by_name(kernels), std::move(pool)) {}

    using DrawnTokens = std::pair<std::vector<std::int32_t>, std::vector<std::pair<int, std::string>>>;

    // Tokens, -1 for a row with a fault; the faults by entry.
    DrawnTokens draw(const Logits& logits, const std::vector<std::pair<int, Draw>>& draws) { return draw_from(logits, nullptr, draws); }

    DrawnTokens draw_reduced(const Logits& logits, const Ids& ids, const std::vector<std::pair<int, Draw>>& draws) {
        if (ids.shape(0) != logits.shape(1)) throw std::invalid_argument("as many ids as columns are needed");
        return draw_from(logits, ids.data(), draws);
    }

    DrawnTokens draw_from(const Logits& logits, const std::int32_t* ids, const std::vector<std::pair<int, Draw>>& draws) {
        std::vector<int> which;
        std::vector<DrawRow> rows;
        which.reserve(draws.size());
        rows.reserve(draws.size());
        for (const auto& [row, draw] : draws) {
            which.push_back(checked_row(row, logits.shape(0)));
            rows.push_back(row_of(draw));
        }
        std::vector<Drawn> drawn(rows.size());
        {
            const int columns = columns_of(logits.shape(1));
            const nb::gil_scoped_release unlocked;
            sampler_.draw(logits.data(), columns, ids, which, rows, drawn.data());
        }
        std::vector<std::int32_t> tokens;
        tokens.reserve(drawn.size());
        std::vector<std::pair<int, std::string>> faults;
        for (std::size_t i = 0; i < drawn.size(); ++i) {
            tokens.push_back(drawn[i].token);
            if (drawn[i].fault != LogitsFault::None) faults.emplace_back(static_cast<int>(i), name_of(drawn[i].fault));
        }
        return {std::move(tokens), std::move(faults)};
    }

    std::pair<std::int32_t, std::string> draw_processed(const Scores& scores, const Draw& draw) {
        const DrawRow row = row_of(draw);
        const int columns = columns_of(scores.shape(0));
        const nb::gil_scoped_release unlocked;
        const Drawn drawn = sampler_.draw_processed(scores.data(), columns, row);
        return {drawn.token, name_of(drawn.fault)};
    }

    using Logprob = std::tuple<double, int, std::vector<std::pair<int, double>>, std::string>;  // logprob, rank, top, fault

    std::vector<Logprob> logprobs(const Logits& logits, const std::vector<std::tuple<int, int, int>>& asked) {
        const int columns = columns_of(logits.shape(1));
        std::vector<int> which;
        std::vector<LogprobRow> rows;
        std::vector<std::unique_ptr<Ranked[]>> tops;
        for (const auto& [row, token, num_top] : asked) {
            which.push_back(checked_row(row, logits.shape(0)));
            if (token < 0 || token >= columns || num_top < 0) throw std::out_of_range("token " + std::to_string(token) + " of " + std::to_string(columns));
            LogprobRow each;
            each.token = token;
            each.num_top = std::min(num_top, columns);
            tops.push_back(std::make_unique<Ranked[]>(static_cast<std::size_t>(each.num_top)));
            each.top = tops.back().get();
            rows.push_back(each);
        }
        {
            const nb::gil_scoped_release unlocked;
            sampler_.logprobs(logits.data(), columns, which, rows);
        }
        std::vector<Logprob> out;
        for (const LogprobRow& row : rows) {
            std::vector<std::pair<int, double>> top;
            for (int i = 0; i < row.num_top && row.fault == LogitsFault::None; ++i) top.emplace_back(row.top[i].token, row.top[i].value);
            out.emplace_back(row.logprob, row.rank, std::move(top), name_of(row.fault));
        }
        return out;
    }

  private:
    slipstream::Sampler sampler_;
};

}  // namespace

void bind_sampler(nb::module_& m) {
    nb::class_<Sampler>(m, "Sampler")
        .def(nb::init<std::shared_ptr<slipstream::ThreadPool>, const std::string&>(), "pool"_a, "kernels"_a)
        .def("draw", &Sampler::draw, "logits"_a.noconvert(), "draws"_a)
        .def("draw_reduced", &Sampler::draw_reduced, "logits"_a.noconvert(), "ids"_a.noconvert(), "draws"_a)
        .def("draw_processed", &Sampler::draw_processed, "scores"_a.noconvert(), "draw"_a)
        .def("logprobs", &Sampler::logprobs, "logits"_a.noconvert(), "asked"_a);
}
