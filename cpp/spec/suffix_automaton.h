#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace slipstream {

// (state, token) -> state, for the tokens after the first one that leave a state. Open addressing over a list of entries, in
// which those of one state are chained, since a state that is split off gets all of them.
class Transitions {
  public:
    static constexpr std::int32_t kNone = -1;

    // The entry of the transition, kNone if there is none.
    std::int32_t find(std::int32_t state, std::int32_t token) const;
    std::int32_t target(std::int32_t entry) const { return entries_[static_cast<std::size_t>(entry)].target; }
    void redirect(std::int32_t entry, std::int32_t target) { entries_[static_cast<std::size_t>(entry)].target = target; }
    // `newest`: the state's newest entry before, kNone if it has none; the new one. There must be none with this token.
    std::int32_t add(std::int32_t state, std::int32_t token, std::int32_t target, std::int32_t newest);
    // Gives `state` all that the chain of `newest` has; its newest entry.
    std::int32_t copy(std::int32_t newest, std::int32_t state);
    std::size_t bytes() const { return entries_.capacity() * sizeof(Entry) + places_.capacity() * sizeof(std::int32_t); }

  private:
    struct Entry {
        std::int32_t state, token, target, before;
    };

    std::size_t place_of(std::int32_t state, std::int32_t token) const;
    void grow();

    std::vector<Entry> entries_;
    std::vector<std::int32_t> places_;  // a power of two, more than twice as many as entries
};

// Suffix automaton over token ids (Blumer et al., The smallest automaton recognizing the subwords of a text, 1985), extended one
// token at a time, amortised O(1) each and O(n) memory. Every state stands for substrings that end at the same places. The link of
// the state of the whole sequence is its longest suffix that also ends somewhere earlier; that state's `recent` end is where its
// continuation is read. `recent` is refreshed for one state per token, the one that a lookup would read now, so it may be older than
// the last occurrence, but never wrong.
class SuffixAutomaton {
  public:
    struct Match {
        std::int32_t length, end;
    };

    SuffixAutomaton() { new_state(0, kNone, kNone); }

    void append(std::int32_t token);  // not negative
    std::optional<Match> longest(std::int32_t least, std::int32_t most) const;
    std::vector<Match> matches(std::int32_t least, std::int32_t most) const;
    // The `count` tokens after index `end`; past the sequence's own end it goes on as it did since `end`.
    std::vector<std::int32_t> continuation(std::int32_t end, std::int32_t count) const;

    std::size_t size() const { return tokens_.size(); }
    std::size_t states() const { return state_.size(); }
    std::size_t bytes() const { return tokens_.capacity() * sizeof(std::int32_t) + state_.capacity() * sizeof(State) + more_.bytes(); }

  private:
    static constexpr std::int32_t kNone = -1;
    struct State {
        std::int32_t token, next;  // the first token that left it, and where that leads
        std::int32_t more;         // the newest of the others
        std::int32_t link, length;
        std::int32_t recent;  // index of the last token of an occurrence that ends before the newest token
    };

    State& at(std::int32_t state) { return state_[static_cast<std::size_t>(state)]; }
    const State& at(std::int32_t state) const { return state_[static_cast<std::size_t>(state)]; }
    std::int32_t new_state(std::int32_t length, std::int32_t link, std::int32_t recent);
    std::int32_t linked(std::int32_t state, std::int32_t token, std::int32_t target);

    std::vector<std::int32_t> tokens_;
    std::vector<State> state_;
    Transitions more_;
    std::int32_t last_ = 0;
    std::int32_t pending_ = kNone;  // the state whose `recent` becomes the newest token once that is no longer the newest
};

}  // namespace slipstream
