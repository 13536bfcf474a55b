#include "runtime/program.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>

namespace slipstream {
namespace {

constexpr int kMaxPieces = 16;                // of one thread's share
constexpr std::int64_t kPieceBytes = 96 << 10;  // of weights, times rows: some microseconds
constexpr int kStreamUnits = 4;

std::int64_t nanoseconds() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int groups_of(int columns) { return (columns + 31) / 32; }

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }

std::string range(const char* name, int i, std::int64_t value, std::int64_t limit) {
    return std::string(name) + "[" + std::to_string(i) + "] is " + std::to_string(value) + ", outside 0 .. " +
           std::to_string(limit - 1);
}

// Where each thread begins, so that all read about as many bytes of weights.
std::vector<int> split_blocks(const std::vector<Segment>& segments, int num_threads) {
    std::size_t total = 0;
    for (const Segment& s : segments) total += s.matrix.num_bytes();
    std::vector<int> bounds{0};
    std::size_t done = 0;
    int index = 0;
    for (const Segment& s : segments) {
        for (std::int64_t b = 0; b < s.matrix.num_blocks(); ++b, ++index) {
            const auto t = static_cast<std::size_t>(bounds.size());
            if (t < static_cast<std::size_t>(num_threads) && done + s.matrix.block_bytes() / 2 >= total / static_cast<std::size_t>(num_threads) * t) {
                bounds.push_back(index);
            }
            done += s.matrix.block_bytes();
        }
    }
    while (bounds.size() <= static_cast<std::size_t>(num_threads)) bounds.push_back(index);
    return bounds;
}

}  // namespace

Program::Program(const KernelTable& kernels, std::shared_ptr<ThreadPool> pool) : kernels_(kernels), pool_(std::move(pool)) {}

Program::~Program() { pool_->leave(); }

void Program::add_phases(int prologue, std::int64_t unit_bytes) {
    const int op = num_ops() - 1;
    const bool attention = std::holds_alternative<AttentionOp>(ops_.back());
    if (attention) phases_.push_back({op, Part::Write, -1, 0});
    phases_.push_back({op, Part::Main, prologue, unit_bytes});
    if (attention) phases_.push_back({op, Part::Merge, -1, 0});
}

int Program::add_rows(Domain domain, int columns) {
    rows_.push_back({domain, columns, false, nullptr, 0});
    need_scratch(groups_of(columns) * 32);
    return static_cast<int>(rows_.size()) - 1;
}

int Program::add_output(int columns) {
    rows_.push_back({kLogits, columns, true, nullptr, 0});
    output_columns_ = columns;
    return static_cast<int>(rows_.size()) - 1;
}

int Program::add_tiles(Domain domain, int columns) {
    tiles_.push_back({domain, groups_of(columns), false, false, nullptr, 0});
    return static_cast<int>(tiles_.size()) - 1;
}

void Program::check_ref(Ref ref, int columns) const {
    if (!ref) return;
    if (ref.buffer >= static_cast<int>(rows_.size()) || ref.column < 0 || ref.column % 8 != 0 ||
        ref.column + columns > rows_[static_cast<std::size_t>(ref.buffer)].columns) {
        refuse("columns " + std::to_string(ref.column) + " and " + std::to_string(columns) + " more are not in the buffer");
    }
}

void Program::check_tiles(int tiles, int columns) const {
    if (tiles < 0) return;
    if (tiles >= static_cast<int>(tiles_.size()) || tiles_[static_cast<std::size_t>(tiles)].groups != groups_of(columns)) {
        refuse("tiles of " + std::to_string(columns) + " columns are not such a buffer");
    }
}

void Program::add(const EmbedOp& op) {
    check_ref(op.out, static_cast<int>(op.table.cols));
    vocabulary_ = std::min(vocabulary_, op.table.rows);
    ops_.emplace_back(op);
    add_phases(-1, 0);
}

void Program::add(const TokenOp& op) {
    for (const Ref ref : {op.in, op.residual, op.sum, op.out}) check_ref(ref, op.columns);
    check_tiles(op.tiles, op.columns);
    need_scratch(groups_of(op.columns) * 32);
    ops_.emplace_back(op);
    add_phases(-1, 0);
}

void Program::add(const HeadNormOp& op) {
    check_ref(op.in, op.columns);
    check_ref(op.out, op.columns);
    ops_.emplace_back(op);
    add_phases(-1, 0);
}

void Program::add(const RopeOp& op) {
    check_ref(op.in, op.columns);
    check_ref(op.out, op.columns);
    max_position_ = std::min(max_position_, op.table.max_position);
    ops_.emplace_back(op);
    add_phases(-1, 0);
}

void Program::add(LinearOp op, std::vector<Segment> segments) {
    const Matrix& first = segments.at(0).matrix;
    const int in = static_cast<int>(first.cols);
    check_tiles(op.tiles, in);
    check_ref(op.in, in);
    for (const Segment& s : segments) {
        if (s.matrix.cols != first.cols || s.matrix.dense() != (op.tiles < 0)) refuse("matrices of one linear differ in their input");
        check_ref(s.out, static_cast<int>(s.matrix.rows));
        check_ref(s.residual, static_cast<int>(s.matrix.rows));
    }
    std::vector<int> bounds;
    if (op.gated) {
        const int out = static_cast<int>(first.rows);
        if (segments.size() != 2 || segments[1].matrix.rows != first.rows || out % 32 != 0) refuse("gate and up must be alike, with rows a multiple of 32");
        check_tiles(op.gated_tiles, out);
        need_scratch(2 * out + 64);
        check_ref(op.gated_out, out);
        for (int t = 0; t <= pool_->size(); ++t) bounds.push_back(static_cast<int>(static_cast<std::int64_t>(out / 32) * t / pool_->size()));
    } else {
        bounds = split_blocks(segments, pool_->size());
    }
    segments_.push_back(std::make_unique<std::vector<Segment>>(std::move(segments)));
    bounds_.push_back(std::make_unique<std::vector<int>>(std::move(bounds)));
    op.segments = segments_.back()->data();
    op.num_segments = static_cast<int>(segments_.back()->size());
    op.bounds = bounds_.back()->data();
    // Quantising one or two rows is cheaper than a barrier after it: every thread does it for itself, unless others read
    // the result too or we add what that op stores.
    int prologue = -1;
    if (op.tiles >= 0) {
        const auto* token = ops_.empty() ? nullptr : std::get_if<TokenOp>(&ops_.back());
        const bool reads = token != nullptr && std::any_of(segments_.back()->begin(), segments_.back()->end(), [&](const Segment& s) {
            return s.residual && (s.residual.buffer == token->sum.buffer || s.residual.buffer == token->out.buffer);
        });
        TilesBuffer& tiles = tiles_[static_cast<std::size_t>(op.tiles)];
        if (token != nullptr && token->tiles == op.tiles && !reads) {
            prologue = num_ops() - 1;
            tiles.by_token = true;
        } else {
            tiles.shared = true;
        }
    }
    const std::int64_t units = op.bounds[pool_->size()];
    std::size_t bytes = 0;
    for (int i = 0; i < op.num_segments; ++i) bytes += op.segments[i].matrix.num_bytes();
    ops_.emplace_back(op);
    add_phases(prologue, static_cast<std::int64_t>(bytes) / std::max<std::int64_t>(units, 1));
}

void Program::add(const GateOp& op) {
    for (const Ref ref : {op.gate_in, op.up_in, op.out}) check_ref(ref, op.columns);
    check_tiles(op.tiles, op.columns);
    ops_.emplace_back(op);
    add_phases(-1, 0);
}

void Program::add(const SoftCapOp& op) {
    check_ref(op.in, op.columns);
    check_ref(op.out, op.columns);
    ops_.emplace_back(op);
    add_phases(-1, 0);
}

void Program::add(AttentionOp op, int num_blocks) {
    if (op.head_dim % 8 != 0 || op.head_dim < 8 || op.head_dim > 256) refuse("head size " + std::to_string(op.head_dim) + " is not a multiple of 8 up to 256");
    if (op.num_kv_heads < 1 || op.num_heads % op.num_kv_heads != 0) refuse("query heads must be a multiple of KV heads");
    check_ref(op.q, op.num_heads * op.head_dim);
    check_ref(op.k, op.num_kv_heads * op.head_dim);
    check_ref(op.v, op.num_kv_heads * op.head_dim);
    check_ref(op.out, op.num_heads * op.head_dim);
    check_tiles(op.tiles, op.num_heads * op.head_dim);
    if (op.tiles >= 0 && op.num_heads / op.num_kv_heads * op.head_dim % 32 != 0) refuse("attention cannot quantise heads that share a group");
    for (const RopeTableView* table : {&op.q_rope, &op.k_rope}) {
        if (table->pairs != 0) max_position_ = std::min(max_position_, table->max_position);
        if (2 * table->pairs > op.head_dim) refuse("more dimensions to rotate than a head has");
    }
    if (block_size_ != 0 && block_size_ != op.block_size) refuse("layers with different block sizes");
    block_size_ = op.block_size;
    num_blocks_ = std::min(num_blocks_, num_blocks);
    op.schedule = -1;
    for (std::size_t i = 0; i < builders_.size(); ++i) {
        if (builders_[i]->fits(op)) op.schedule = static_cast<int>(i);
    }
    if (op.schedule < 0) {
        op.schedule = static_cast<int>(builders_.size());
        builders_.push_back(std::make_unique<ScheduleBuilder>(op, pool_->size()));
    }
    need_scratch(attention_scratch_floats(op));
    ops_.emplace_back(op);
    add_phases(-1, 0);
}

const char* Program::op_name(int op) const {
    static constexpr const char* names[] = {"embed", "token", "head_norm", "rope", "linear", "gate", "soft_cap", "attention"};
    const Op& o = ops_.at(static_cast<std::size_t>(op));
    if (const auto* linear = std::get_if<LinearOp>(&o)) {
        if (linear->gated) return "linear_gated";
        if (linear->domain == kLogits) return "linear_logits";
        return linear->num_segments > 1 ? "linear_joined" : "linear";
    }
    return names[o.index()];
}

void Program::check(const BatchArrays& b) const {
    for (int i = 0; i < b.num_tokens; ++i) {
        if (b.token_ids[i] < 0 || b.token_ids[i] >= vocabulary_) refuse(range("token_ids", i, b.token_ids[i], vocabulary_));
        if (b.positions[i] < 0 || b.positions[i] >= max_position_) refuse(range("positions", i, b.positions[i], max_position_));
        const std::int64_t slots = static_cast<std::int64_t>(num_blocks_) * block_size_;
        if (block_size_ != 0 && (b.slots[i] < 0 || b.slots[i] >= slots)) refuse(range("slots", i, b.slots[i], slots));
    }
    for (int i = 0; i < b.num_logits; ++i) {
        if (b.logits_rows[i] < 0 || b.logits_rows[i] >= b.num_tokens) refuse(range("logits_rows", i, b.logits_rows[i], b.num_tokens));
    }
    if (block_size_ == 0) return;
    if (b.num_rows < 0 || b.query_start[0] != 0 || b.query_start[b.num_rows] != b.num_tokens) refuse("query_start must run from 0 to the number of tokens");
    for (int r = 0; r < b.num_rows; ++r) {
        const int begin = b.query_start[r], n = b.query_start[r + 1] - begin;
        if (n < 1) refuse("row " + std::to_string(r) + " has no token");
        if (b.kv_len[r] < n) refuse("row " + std::to_string(r) + " attends to fewer tokens than it brings");
        const int blocks = (b.kv_len[r] + block_size_ - 1) / block_size_;
        if (blocks > b.table_width) refuse("row " + std::to_string(r) + " has too few blocks");
        const std::int32_t* table = b.block_table + static_cast<std::ptrdiff_t>(r) * b.table_width;
        for (int i = 0; i < blocks; ++i) {
            if (table[i] < 0 || table[i] >= num_blocks_) refuse(range("block_table", r, table[i], num_blocks_));
        }
        for (int i = 0; i < n; ++i) {
            const int position = b.kv_len[r] - n + i;
            if (b.positions[begin + i] != position) refuse("positions of row " + std::to_string(r) + " are not its last tokens");
            if (b.slots[begin + i] != table[position / block_size_] * block_size_ + position % block_size_) refuse("slots of row " + std::to_string(r) + " are not in its blocks");
        }
    }
}

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

void Program::prepare(const BatchArrays& b, float* output) {
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
    step_.scratch = scratch_views_.data();
    prepare_phases();
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
    if (phase.part == Part::Main && std::holds_alternative<AttentionOp>(ops_[static_cast<std::size_t>(phase.op)])) return std::min(units, kMaxPieces);
    if (phase.unit_bytes == 0) return std::min(units, 4);
    const std::int64_t rows = step_.tiling[std::get<LinearOp>(ops_[static_cast<std::size_t>(phase.op)]).domain].rows;
    const std::int64_t pieces = std::clamp<std::int64_t>(units * phase.unit_bytes * rows / kPieceBytes, 1, kMaxPieces);
    return static_cast<int>(std::min<std::int64_t>(pieces, rows == 1 ? (units + kStreamUnits - 1) / kStreamUnits : units));
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

void Program::run(const BatchArrays& batch, float* output) {
    const std::lock_guard<std::mutex> lock(running_);
    check(batch);
    if (batch.num_tokens == 0) return;
    prepare(batch, output);
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
    if (from.output || columns != from.columns || rows > from.capacity) refuse("the buffer has no such rows");
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
        default: {
            const AttentionOp& attention = std::get<7>(op);
            if (phase.part == Part::Write) return kernels_.attention_write(attention, step_, thread, first, last);
            if (phase.part == Part::Merge) return kernels_.attention_merge(attention, step_, thread, first, last);
            return kernels_.attention(attention, step_, thread, first, last);
        }
    }
}

// Only with a claim on the piece: as long as it is not done, the step's data stay as they are.
void Program::execute_piece(const Phase& phase, const Share& share, int thread, int owner, int piece, bool& prepared) {
    const int begin = share_begin(share, owner), units = share_begin(share, owner + 1) - begin, pieces = num_pieces(phase, share, owner);
    // Whole groups of blocks, which are read side by side.
    const int grain = phase.unit_bytes != 0 && units >= kStreamUnits * pieces ? kStreamUnits : 1;
    const auto cut = [&](int i) {
        return i == pieces ? begin + units : begin + static_cast<int>(static_cast<std::int64_t>(units / grain) * i / pieces) * grain;
    };
    const int first = cut(piece), last = cut(piece + 1);
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
