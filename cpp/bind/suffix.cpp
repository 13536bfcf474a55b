#include "bind/suffix.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "spec/suffix_automaton.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using slipstream::SuffixAutomaton;
using Match = std::pair<std::int32_t, std::int32_t>;

constexpr std::size_t kMostTokens = 1U << 30U;  // states, of which there are at most twice as many, are numbered with 32 bits

// All or none of them.
void extend(SuffixAutomaton& automaton, const std::vector<std::int32_t>& tokens) {
    for (const std::int32_t token : tokens) {
        if (token < 0) throw std::invalid_argument("a token is not negative");
    }
    if (tokens.size() > kMostTokens - automaton.size()) throw std::length_error("too many tokens for a suffix automaton");
    for (const std::int32_t token : tokens) automaton.append(token);
}

std::optional<Match> longest(const SuffixAutomaton& automaton, std::int32_t least, std::int32_t most) {
    const auto found = automaton.longest(least, most);
    if (!found) return std::nullopt;
    return Match{found->length, found->end};
}

std::vector<Match> matches(const SuffixAutomaton& automaton, std::int32_t least, std::int32_t most) {
    std::vector<Match> out;
    for (const SuffixAutomaton::Match& match : automaton.matches(least, most)) out.emplace_back(match.length, match.end);
    return out;
}

nb::tuple continuation(const SuffixAutomaton& automaton, std::int32_t end, std::int32_t count) {
    if (end < 0 || static_cast<std::size_t>(end) + 1 >= automaton.size()) throw std::out_of_range("nothing follows there");
    return nb::tuple(nb::cast(automaton.continuation(end, count)));
}

}  // namespace

void bind_suffix(nb::module_& m) {
    nb::class_<SuffixAutomaton>(m, "SuffixAutomaton")
        .def(nb::init<>())
        .def("extend", &extend, "tokens"_a)
        .def("longest", &longest, "min_length"_a, "max_length"_a)
        .def("matches", &matches, "min_length"_a, "max_length"_a)
        .def("continuation", &continuation, "end"_a, "count"_a)
        .def("__len__", &SuffixAutomaton::size)
        .def_prop_ro("num_states", &SuffixAutomaton::states)
        .def_prop_ro("nbytes", &SuffixAutomaton::bytes);
}
