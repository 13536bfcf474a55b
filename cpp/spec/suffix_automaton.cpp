#include "spec/suffix_automaton.h"

#include <algorithm>
#include <unordered_set>

namespace slipstream {

std::size_t Transitions::place_of(std::int32_t state, std::int32_t token) const {
    const std::uint64_t key = static_cast<std::uint64_t>(static_cast<std::uint32_t>(state)) << 32 | static_cast<std::uint32_t>(token);
    const std::size_t mask = places_.size() - 1;
    auto place = static_cast<std::size_t>((key * 0x9e3779b97f4a7c15ULL) >> 32) & mask;
    for (;; place = (place + 1) & mask) {
        const std::int32_t entry = places_[place];
        if (entry == kNone) return place;
        const Entry& found = entries_[static_cast<std::size_t>(entry)];
        if (found.state == state && found.token == token) return place;
    }
}

std::int32_t Transitions::find(std::int32_t state, std::int32_t token) const {
    return places_.empty() ? kNone : places_[place_of(state, token)];
}

void Transitions::grow() {
    places_.assign(std::max<std::size_t>(16, 2 * places_.size()), kNone);
    for (std::size_t i = 0; i < entries_.size(); ++i) {
        places_[place_of(entries_[i].state, entries_[i].token)] = static_cast<std::int32_t>(i);
    }
}

std::int32_t Transitions::add(std::int32_t state, std::int32_t token, std::int32_t target, std::int32_t newest) {
    if (2 * (entries_.size() + 1) >= places_.size()) grow();
    const auto entry = static_cast<std::int32_t>(entries_.size());
    const std::size_t place = place_of(state, token);
    entries_.push_back({state, token, target, newest});
    places_[place] = entry;
    return entry;
}

std::int32_t Transitions::copy(std::int32_t newest, std::int32_t state) {
    std::int32_t copied = kNone;
    while (newest != kNone) {
        const Entry entry = entries_[static_cast<std::size_t>(newest)];  // adding moves the entries
        copied = add(state, entry.token, entry.target, copied);
        newest = entry.before;
    }
    return copied;
}

std::int32_t SuffixAutomaton::new_state(std::int32_t length, std::int32_t link, std::int32_t recent) {
    state_.push_back({kNone, kNone, kNone, link, length, recent});
    return static_cast<std::int32_t>(state_.size()) - 1;
}

void SuffixAutomaton::append(std::int32_t token) {
    const auto position = static_cast<std::int32_t>(tokens_.size());
    tokens_.push_back(token);
    if (pending_ > 0) at(pending_).recent = position - 1;
    std::int32_t state = last_, target = kNone;
    const std::int32_t current = last_ = new_state(at(state).length + 1, 0, position);
    for (; state != kNone; state = at(state).link) {
        State& from = at(state);
        if (from.token == token) {
            target = from.next;
            break;
        }
        if (from.token == kNone) {
            from.token = token;
            from.next = current;
            continue;
        }
        const std::int32_t entry = more_.find(state, token);
        if (entry != kNone) {
            target = more_.target(entry);
            break;
        }
        from.more = more_.add(state, token, current, from.more);
    }
    if (target != kNone) {
        const std::int32_t link = linked(state, token, target);
        at(current).link = link;
    }
    pending_ = at(current).link;
}

// The state of the longest suffix that ends with the transition to `target`; split off it where needed.
std::int32_t SuffixAutomaton::linked(std::int32_t state, std::int32_t token, std::int32_t target) {
    if (at(state).length + 1 == at(target).length) return target;
    const std::int32_t clone = new_state(at(state).length + 1, at(target).link, at(target).recent);
    at(clone).token = at(target).token;
    at(clone).next = at(target).next;
    at(clone).more = more_.copy(at(target).more, clone);
    at(target).link = clone;
    for (; state != kNone; state = at(state).link) {
        State& from = at(state);
        if (from.token == token) {
            if (from.next != target) break;
            from.next = clone;
        } else {
            const std::int32_t entry = more_.find(state, token);
            if (entry == kNone || more_.target(entry) != target) break;
            more_.redirect(entry, clone);
        }
    }
    return clone;
}

std::optional<SuffixAutomaton::Match> SuffixAutomaton::longest(std::int32_t least, std::int32_t most) const {
    const std::int32_t state = tokens_.empty() ? 0 : at(last_).link;
    if (state <= 0 || at(state).length < least) return std::nullopt;
    return Match{std::min(at(state).length, most), at(state).recent};
}

std::vector<SuffixAutomaton::Match> SuffixAutomaton::matches(std::int32_t least, std::int32_t most) const {
    std::vector<Match> found;
    std::unordered_set<std::int32_t> ends;
    for (std::int32_t state = tokens_.empty() ? 0 : at(last_).link; state > 0 && at(state).length >= least; state = at(state).link) {
        if (ends.insert(at(state).recent).second) found.push_back({std::min(at(state).length, most), at(state).recent});
    }
    return found;
}

std::vector<std::int32_t> SuffixAutomaton::continuation(std::int32_t end, std::int32_t count) const {
    std::vector<std::int32_t> following;
    following.reserve(static_cast<std::size_t>(std::max(0, count)));
    const std::int32_t period = static_cast<std::int32_t>(tokens_.size()) - 1 - end;
    for (std::int32_t i = 0; i < count; ++i) following.push_back(tokens_[static_cast<std::size_t>(end + 1 + i % period)]);
    return following;
}

}  // namespace slipstream
