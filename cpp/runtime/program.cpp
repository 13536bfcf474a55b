#include "runtime/program.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>

namespace slipstream {
namespace {

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
    tiles_.push_back({domain, groups_of(columns), false, nullptr, 0});
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
    may_skip_.push_back(0);
}

void Program::add(const TokenOp& op) {
    for (const Ref ref : {op.in, op.residual, op.sum, op.out}) check_ref(ref, op.columns);
    check_tiles(op.tiles, op.columns);
    if (op.tiles >= 0) tiles_[static_cast<std::size_t>(op.tiles)].by_token = true;
    need_scratch(groups_of(op.columns) * 32);
    ops_.emplace_back(op);
    may_skip_.push_back(0);
}

void Program::add(const HeadNormOp& op) {
    check_ref(op.in, op.columns);
    check_ref(op.out, op.columns);
    ops_.emplace_back(op);
    may_skip_.push_back(0);
}

void Program::add(const RopeOp& op) {
    check_ref(op.in, op.columns);
    check_ref(op.out, op.columns);
    max_position_ = std::min(max_position_, op.table.max_position);
    ops_.emplace_back(op);
    may_skip_.push_back(0);
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
    // A token op with copies of its tiles for every thread needs no barrier before this, unless it stores what we add.
    if (!ops_.empty()) {
        const auto* token = std::get_if<TokenOp>(&ops_.back());
        if (token != nullptr && token->tiles >= 0 && token->tiles == op.tiles) {
            const bool reads = std::any_of(segments_.back()->begin(), segments_.back()->end(), [&](const Segment& s) {
                return s.residual && (s.residual.buffer == token->sum.buffer || s.residual.buffer == token->out.buffer);
            });
            if (!reads) may_skip_.back() = 1;
        }
    }
    ops_.emplace_back(op);
    may_skip_.push_back(0);
}

void Program::add(const GateOp& op) {
    for (const Ref ref : {op.gate_in, op.up_in, op.out}) check_ref(ref, op.columns);
    check_tiles(op.tiles, op.columns);
    ops_.emplace_back(op);
    may_skip_.push_back(0);
}

void Program::add(const SoftCapOp& op) {
    check_ref(op.in, op.columns);
    check_ref(op.out, op.columns);
    ops_.emplace_back(op);
    may_skip_.push_back(0);
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
    may_skip_.push_back(0);
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
        const bool copies = buffer.by_token && n <= 2 && pool_->size() > 1;
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
}

void Program::run(const BatchArrays& batch, float* output) {
    const std::lock_guard<std::mutex> lock(running_);
    check(batch);
    if (batch.num_tokens == 0) return;
    prepare(batch, output);
    pool_->run([](void* self, int thread) { static_cast<Program*>(self)->execute(thread); }, this);
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

bool Program::skips_barrier(std::size_t i) const {
    if (may_skip_[i] == 0) return false;
    const TokenOp& op = std::get<TokenOp>(ops_[i]);
    return step_.tiles[op.tiles].copy_words != 0;
}

void Program::execute(int thread) {
    using Clock = std::chrono::steady_clock;
    const bool timed = profiling_ && thread == 0;
    Clock::time_point last = timed ? Clock::now() : Clock::time_point();
    for (std::size_t i = 0; i < ops_.size(); ++i) {
        const Op& op = ops_[i];
        switch (op.index()) {
            case 0: kernels_.embed(std::get<0>(op), step_, thread); break;
            case 1: kernels_.token(std::get<1>(op), step_, thread); break;
            case 2: kernels_.head_norm(std::get<2>(op), step_, thread); break;
            case 3: kernels_.rope(std::get<3>(op), step_, thread); break;
            case 4: kernels_.linear(std::get<4>(op), step_, thread); break;
            case 5: kernels_.gate(std::get<5>(op), step_, thread); break;
            case 6: kernels_.soft_cap(std::get<6>(op), step_, thread); break;
            default: {
                const AttentionOp& attention = std::get<7>(op);
                const AttentionSchedule& schedule = step_.schedules[attention.schedule];
                if (schedule.write_first) {
                    kernels_.attention_write(attention, step_, thread);
                    pool_->barrier(thread);
                }
                kernels_.attention(attention, step_, thread);
                if (schedule.num_merges != 0) {
                    pool_->barrier(thread);
                    kernels_.attention_merge(attention, step_, thread);
                }
            }
        }
        if (!skips_barrier(i)) pool_->barrier(thread);
        if (timed) {
            const Clock::time_point now = Clock::now();
            seconds_[i] += std::chrono::duration<double>(now - last).count();
            last = now;
        }
    }
}

}  // namespace slipstream
