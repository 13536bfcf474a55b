#include "runtime/program.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>

// Running a program: buffers for a step, its phases, and who does what.

namespace slipstream {
namespace {

constexpr std::int64_t kPieceBytes = 96 << 10;  // of weights, times rows: some microseconds
constexpr int kStreamUnits = 4;
constexpr int kMaxTasks = 64;  // pieces of attention of one thread's share

std::int64_t nanoseconds() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int groups_of(int columns) { return (columns + 31) / 32; }

}  // namespace

void Program::prepare_tiling(Domain domain, int rows) {
    TilingBuffer& tiling = tilings_[domain];
    const int num = (rows + kTileTokens - 1) / kTileTokens;
    tiling.start.resize(static_cast<std::size_t>(num) + 1);
    tiling.tile.resize(static_cast<std::size_t>(rows));
    tiling.start[0] = 0;
    for (int i = 0; i < num; ++i) {
        const int first = tiling.start[static_cast<std::size_t>(i)], last = static_cast<int>(static_cast<std::int64_t>(rows) * (i + 1) / num);
        std::fill(tiling.tile.begin() + first, tiling.tile.begin() + last, i);
        tiling.start[static_cast<std::size_t>(i) + 1] = last;
    }
    step_.tiling[domain] = {rows, num, tiling.start.data(), tiling.tile.data()};
}

void Program::prepare(const BatchArrays& b, float* output, const float* input) {
    const int rows[2] = {b.num_tokens, b.num_logits};
    step_.num_threads = pool_->size();
    step_.token_ids = b.token_ids;
    step_.positions = b.positions;
    step_.slots = b.slots;
    step_.kv_len = b.kv_len;
    step_.block_table = b.block_table;
    step_.table_width = b.table_width;
    step_.logits_rows = b.logits_rows;
    prepare_tiling(kTokens, rows[kTokens]);
    prepare_tiling(kLogits, rows[kLogits]);
    row_views_.resize(rows_.size());
    for (std::size_t i = 0; i < rows_.size(); ++i) {
        RowsBuffer& buffer = rows_[i];
        if (buffer.output) {
            row_views_[i] = {output, buffer.columns, buffer.columns};
            continue;
        }
        const int n = rows[buffer.domain], ld = groups_of(buffer.columns) * 32;
        if (n > buffer.capacity) {
            buffer.data = aligned_zeros<float>(static_cast<std::size_t>(n) * static_cast<std::size_t>(ld));
            buffer.capacity = n;
        }
        row_views_[i] = {buffer.data.get(), ld, ld};
        if (static_cast<int>(i) != input_) continue;
        // Copied: the caller's rows are not padded. What the last step left in the padding, if it lent the buffer out, is zeroed.
        for (int row = 0; row < n; ++row) {
            float* to = buffer.data.get() + static_cast<std::size_t>(row) * static_cast<std::size_t>(ld);
            std::fill(std::copy_n(input + static_cast<std::size_t>(row) * static_cast<std::size_t>(buffer.columns), buffer.columns, to), to + ld, 0.0f);
        }
    }
    tile_views_.resize(tiles_.size());
    for (std::size_t i = 0; i < tiles_.size(); ++i) {
        TilesBuffer& buffer = tiles_[i];
        const int n = rows[buffer.domain];
        const bool copies = buffer.by_token && !buffer.shared && n <= 2 && pool_->size() > 1;
        const std::size_t words = (static_cast<std::size_t>(n) * static_cast<std::size_t>(buffer.groups) * kTileGroupWords + 15) / 16 * 16;
        const std::size_t needed = words * static_cast<std::size_t>(copies ? pool_->size() : 1);
        if (needed > buffer.capacity) {
            buffer.data = aligned_zeros<std::int32_t>(needed);
            buffer.capacity = needed;
        }
        tile_views_[i] = {buffer.data.get(), copies ? static_cast<std::ptrdiff_t>(words) : 0, buffer.groups};
    }
    schedules_.resize(builders_.size());
    for (std::size_t i = 0; i < builders_.size(); ++i) schedules_[i] = builders_[i]->build({b.num_rows, b.query_start, b.kv_len});
    moe_views_.resize(workspaces_.size());
    for (std::size_t i = 0; i < workspaces_.size(); ++i) moe_views_[i] = workspaces_[i]->prepare(b.num_tokens);
    if (scratch_capacity_ < scratch_floats_) {
        scratch_.clear();
        scratch_views_.clear();
        for (int t = 0; t < pool_->size(); ++t) {
            scratch_.push_back(aligned_zeros<float>(static_cast<std::size_t>(scratch_floats_)));
            scratch_views_.push_back(scratch_.back().get());
        }
        scratch_capacity_ = scratch_floats_;
    }
    step_.rows = row_views_.data();
    step_.tiles = tile_views_.data();
    step_.schedules = schedules_.data();
    step_.moe = moe_views_.data();
    step_.scratch = scratch_views_.data();
    prepare_phases();
}

int Program::moe_units(const MoeOp& op, Part part) const {
    const int rows = step_.tiling[kTokens].rows;
    if (part == Part::Group || rows == 0) return rows == 0 ? 0 : 1;
    if (part == Part::Gather) return rows * op.top_k;
    return part == Part::Main ? step_.moe[op.work].num_slices : static_cast<int>(op.downs[0].num_blocks());
}

Program::Share Program::share_of(const Phase& phase) const {
    const Op& op = ops_[static_cast<std::size_t>(phase.op)];
    const auto rows = [&](Domain domain) { return step_.tiling[domain].rows; };
    const auto copied = [&](int token) {
        const int tiles = std::get<TokenOp>(ops_[static_cast<std::size_t>(token)]).tiles;
        return tiles >= 0 && step_.tiles[tiles].copy_words != 0;
    };
    Share share;
    if (const auto* linear = std::get_if<LinearOp>(&op)) {
        share.bounds = linear->bounds;
        share.units = rows(linear->domain) == 0 ? 0 : linear->bounds[pool_->size()];
        share.prologue = phase.prologue >= 0 && copied(phase.prologue);
    } else if (const auto* token = std::get_if<TokenOp>(&op)) {
        share.units = copied(phase.op) ? 0 : rows(token->domain);
    } else if (const auto* cap = std::get_if<SoftCapOp>(&op)) {
        share.units = rows(cap->domain);
    } else if (const auto* attention = std::get_if<AttentionOp>(&op)) {
        const AttentionSchedule& schedule = step_.schedules[attention->schedule];
        if (phase.part == Part::Main) {
            share.bounds = schedule.task_bounds;
            share.units = schedule.task_bounds[pool_->size()];
        } else if (phase.part == Part::Merge) {
            share.units = schedule.num_merges;
        } else {
            share.units = schedule.write_first ? rows(kTokens) : 0;
        }
    } else if (const auto* moe = std::get_if<MoeOp>(&op)) {
        share.units = moe_units(*moe, phase.part);
    } else {
        share.units = rows(kTokens);
    }
    return share;
}

int Program::share_begin(const Share& share, int thread) const {
    if (share.units == 0) return 0;
    if (share.bounds != nullptr) return share.bounds[thread];
    return static_cast<int>(static_cast<std::int64_t>(share.units) * thread / pool_->size());
}

// Into how many pieces a thread's share falls.
int Program::num_pieces(const Phase& phase, const Share& share, int thread) const {
    const int units = share_begin(share, thread + 1) - share_begin(share, thread);
    const Op& op = ops_[static_cast<std::size_t>(phase.op)];
    if (phase.part == Part::Main && std::holds_alternative<AttentionOp>(op)) return std::min(units, kMaxTasks);
    if (phase.part == Part::Main && std::holds_alternative<MoeOp>(op)) return std::min(units, kMaxPieces);
    if (phase.part == Part::Down) return std::min((units + kStreamUnits - 1) / kStreamUnits, kMaxPieces);
    if (phase.unit_bytes == 0) return std::min(units, 4);
    const std::int64_t rows = step_.tiling[std::get<LinearOp>(op).domain].rows;
    const std::int64_t pieces = std::clamp<std::int64_t>(units * phase.unit_bytes * rows / kPieceBytes, 1, kMaxPieces);
    return static_cast<int>(std::min<std::int64_t>(pieces, rows <= 2 ? (units + kStreamUnits - 1) / kStreamUnits : units));
}

void Program::prepare_phases() {
    const int threads = pool_->size();
    shares_.resize(phases_.size());
    if (threads > 1 && claims_stride_ < phases_.size()) {
        pool_->leave();
        claims_stride_ = (phases_.size() + 15) / 16 * 16;
        claims_ = std::make_unique<std::atomic<std::uint64_t>[]>(claims_stride_ * static_cast<std::size_t>(threads));
        open_ = std::make_unique<std::atomic<std::uint64_t>[]>(claims_stride_);
        closed_at_ = std::make_unique<std::atomic<std::int64_t>[]>(claims_stride_);
    }
    const std::uint32_t number = step_number_.load(std::memory_order_relaxed) + 1;
    const std::uint64_t tag = static_cast<std::uint64_t>(number) << 32;
    for (std::size_t p = 0; p < phases_.size(); ++p) {
        shares_[p] = share_of(phases_[p]);
        if (threads == 1) continue;
        std::uint64_t total = 0;
        for (int t = 0; t < threads; ++t) {
            const auto pieces = static_cast<std::uint64_t>(num_pieces(phases_[p], shares_[p], t));
            claims(p, t).store(tag | pieces, std::memory_order_relaxed);
            total += pieces;
        }
        open_[p].store(tag | total, std::memory_order_relaxed);
    }
    step_number_.store(number, std::memory_order_seq_cst);
}

void Program::run(const BatchArrays& batch, float* output, const float* input) {
    const std::lock_guard<std::mutex> lock(running_);
    if (input_ >= 0 && input == nullptr) throw std::invalid_argument("the program's input is missing");
    check_batch(batch, limits_);
    if (batch.num_tokens == 0) return;
    prepare(batch, output, input);
    if (pool_->size() == 1) return execute_alone();
    std::int64_t last = profiling_ ? nanoseconds() : 0;
    pool_->share([](void* self, int thread) { static_cast<Program*>(self)->execute(thread); }, this);
    if (!profiling_) return;
    for (std::size_t p = 0; p < phases_.size(); ++p) {
        const std::int64_t end = closed_at_[p].load(std::memory_order_relaxed);
        if (end <= last) continue;
        seconds_[static_cast<std::size_t>(phases_[p].op)] += 1e-9 * static_cast<double>(end - last);
        last = end;
    }
}

void Program::copy_rows(int buffer, int rows, int columns, float* out) {
    const std::lock_guard<std::mutex> lock(running_);
    const RowsBuffer& from = rows_.at(static_cast<std::size_t>(buffer));
    if (from.output || columns != from.columns || rows > from.capacity) throw std::invalid_argument("the buffer has no such rows");
    const std::size_t ld = static_cast<std::size_t>(groups_of(from.columns)) * 32;
    for (int i = 0; i < rows; ++i) std::copy_n(from.data.get() + static_cast<std::size_t>(i) * ld, columns, out + static_cast<std::size_t>(i) * static_cast<std::size_t>(columns));
}

void Program::set_profiling(bool on) {
    const std::lock_guard<std::mutex> lock(running_);
    profiling_ = on;
    seconds_.assign(ops_.size(), 0.0);
}

// The number of the piece of `thread`'s share that now is ours, -1 when none is left, -2 when the step is over.
int Program::claim(std::size_t phase, int thread, std::uint32_t step) {
    std::atomic<std::uint64_t>& word = claims(phase, thread);
    std::uint64_t value = word.load(std::memory_order_acquire);
    for (;;) {
        if (static_cast<std::uint32_t>(value >> 32) != step) return -2;
        const std::uint64_t next = value >> 16 & 0xffffU;
        if (next >= (value & 0xffffU)) return -1;
        if (word.compare_exchange_weak(value, value + (1U << 16), std::memory_order_acq_rel, std::memory_order_acquire)) return static_cast<int>(next);
    }
}

void Program::execute_units(const Phase& phase, int thread, int first, int last) {
    const Op& op = ops_[static_cast<std::size_t>(phase.op)];
    switch (op.index()) {
        case 0: return kernels_.embed(std::get<0>(op), step_, thread, first, last);
        case 1: return kernels_.token(std::get<1>(op), step_, thread, first, last, true);
        case 2: return kernels_.head_norm(std::get<2>(op), step_, thread, first, last);
        case 3: return kernels_.rope(std::get<3>(op), step_, thread, first, last);
        case 4: return kernels_.linear(std::get<4>(op), step_, thread, first, last);
        case 5: return kernels_.gate(std::get<5>(op), step_, thread, first, last);
        case 6: return kernels_.soft_cap(std::get<6>(op), step_, thread, first, last);
        case 8: return kernels_.route(std::get<8>(op), step_, thread, first, last);
        case 9: return execute_experts(std::get<9>(op), phase.part, thread, first, last);
        default: {
            const AttentionOp& attention = std::get<7>(op);
            if (phase.part == Part::Write) return kernels_.attention_write(attention, step_, thread, first, last);
            if (phase.part == Part::Merge) return kernels_.attention_merge(attention, step_, thread, first, last);
            return kernels_.attention(attention, step_, thread, first, last);
        }
    }
}

void Program::execute_experts(const MoeOp& op, Part part, int thread, int first, int last) {
    if (part == Part::Group) kernels_.moe_group(op, step_);
    else if (part == Part::Gather) kernels_.moe_gather(op, step_, first, last);
    else if (part == Part::Main) kernels_.moe_gated(op, step_, thread, first, last);
    else kernels_.moe_down(op, step_, thread, first, last);
}

// Only with a claim on the piece: as long as it is not done, the step's data stay as they are.
void Program::execute_piece(const Phase& phase, const Share& share, int thread, int owner, int piece, bool& prepared) {
    const int begin = share_begin(share, owner), units = share_begin(share, owner + 1) - begin, pieces = num_pieces(phase, share, owner);
    // Whole groups of blocks, which are read side by side.
    const int grain = phase.unit_bytes != 0 && units >= kStreamUnits * pieces ? kStreamUnits : 1;
    // Blocks that compute rather than read: ever smaller pieces, so that large ones share activations that are in the cache, and
    // nobody waits for more than a small one in the end.
    const bool shrinking = phase.unit_bytes != 0 && grain == 1;
    const auto cut = [&](int i) {
        const std::int64_t left = pieces - i;
        if (left == 0) return begin + units;
        if (shrinking) return begin + units - static_cast<int>(units * left * left / (static_cast<std::int64_t>(pieces) * pieces));
        return begin + static_cast<int>(static_cast<std::int64_t>(units / grain) * i / pieces) * grain;
    };
    const int first = cut(piece), last = cut(piece + 1);
    if (first == last) return;
    if (share.prologue && (!prepared || first == 0)) {
        const TokenOp& token = std::get<TokenOp>(ops_[static_cast<std::size_t>(phase.prologue)]);
        kernels_.token(token, step_, thread, 0, step_.tiling[token.domain].rows, first == 0);
        prepared = true;
    }
    execute_units(phase, thread, first, last);
}

void Program::execute(int thread) {
    const std::uint32_t step = step_number_.load(std::memory_order_seq_cst);
    const int threads = pool_->size();
    const bool stalls = pool_->stalls(thread);
    if (stalls) pool_->stall(step);
    for (std::size_t p = 0; p < phases_.size(); ++p) {
        bool prepared = false;
        std::uint64_t done = 0;
        for (int i = 0; i < threads; ++i) {
            const int owner = thread + i < threads ? thread + i : thread + i - threads;
            for (;;) {
                const int piece = claim(p, owner, step);
                if (piece == -2) return;
                if (piece == -1) break;
                if (stalls) pool_->stall(step + static_cast<std::uint32_t>(p) * 2 + 1);
                execute_piece(phases_[p], shares_[p], thread, owner, piece, prepared);
                ++done;
            }
        }
        if (stalls) pool_->stall(step + static_cast<std::uint32_t>(p) * 2 + 2);
        std::atomic<std::uint64_t>& open = open_[p];
        const auto closed = [&open, step] {
            const std::uint64_t value = open.load(std::memory_order_seq_cst);
            return static_cast<std::uint32_t>(value) == 0 || static_cast<std::uint32_t>(value >> 32) != step;
        };
        // Only whoever has done something may look at the step: it is not over.
        if (done != 0 && profiling_) closing(p);
        if (done != 0 && static_cast<std::uint32_t>(open.fetch_sub(done, std::memory_order_seq_cst) - done) == 0) pool_->wake();
        else if (!closed()) pool_->wait(closed);
    }
}

// The last to finish a piece of a phase says when it ended.
void Program::closing(std::size_t phase) {
    const std::int64_t now = nanoseconds();
    std::int64_t before = closed_at_[phase].load(std::memory_order_relaxed);
    while (before < now && !closed_at_[phase].compare_exchange_weak(before, now, std::memory_order_relaxed)) {}
}

// The only thread there is.
void Program::execute_alone() {
    std::int64_t start = profiling_ ? nanoseconds() : 0;
    for (std::size_t p = 0; p < phases_.size(); ++p) {
        if (shares_[p].units != 0) execute_units(phases_[p], 0, 0, shares_[p].units);
        if (!profiling_) continue;
        const std::int64_t now = nanoseconds();
        seconds_[static_cast<std::size_t>(phases_[p].op)] += 1e-9 * static_cast<double>(now - start);
        start = now;
    }
}

}  // namespace slipstream
