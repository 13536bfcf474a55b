#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "runtime/program.h"

// Putting a program together: what every op may read and write.

namespace slipstream {
namespace {

constexpr int kMaxColumns = 1 << 24;  // of a buffer: sums of a few sizes fit in an int

std::int64_t round_up(std::int64_t n, int multiple) { return (n + multiple - 1) / multiple * multiple; }

int groups_of(std::int64_t columns) { return static_cast<int>((columns + 31) / 32); }

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }

void check_columns(std::int64_t columns) {
    if (columns < 1 || columns > kMaxColumns) refuse(std::to_string(columns) + " columns, where 1 .. " + std::to_string(kMaxColumns) + " are possible");
}

const char* name_of(Domain domain) { return domain == kTokens ? "tokens" : "wanted logits"; }

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

void Program::append(Op op, int prologue, std::int64_t unit_bytes) {
    ops_.push_back(std::move(op));
    const int number = num_ops() - 1;
    const bool attention = std::holds_alternative<AttentionOp>(ops_.back());
    const bool experts = std::holds_alternative<MoeOp>(ops_.back());
    if (attention) phases_.push_back({number, Part::Write, -1, 0});
    if (experts) {
        phases_.push_back({number, Part::Group, -1, 0});
        phases_.push_back({number, Part::Gather, -1, 0});
    }
    phases_.push_back({number, Part::Main, prologue, unit_bytes});
    if (attention) phases_.push_back({number, Part::Merge, -1, 0});
    if (experts) phases_.push_back({number, Part::Down, -1, 0});
}

int Program::add_rows(Domain domain, int columns) {
    check_columns(columns);
    rows_.push_back({domain, columns, false, nullptr, 0});
    need_scratch(groups_of(columns) * 32);
    return static_cast<int>(rows_.size()) - 1;
}

int Program::add_output(int columns) {
    check_columns(columns);
    if (has_output_) refuse("a program has one output");
    has_output_ = true;
    rows_.push_back({kLogits, columns, true, nullptr, 0});
    return static_cast<int>(rows_.size()) - 1;
}

int Program::add_input(int columns) {
    if (input_ >= 0) refuse("a program has one input");
    input_ = add_rows(kTokens, columns);
    return input_;
}

int Program::add_tiles(Domain domain, int columns) {
    check_columns(columns);
    tiles_.push_back({domain, groups_of(columns), false, false, nullptr, 0});
    return static_cast<int>(tiles_.size()) - 1;
}

// Ops read and write whole groups of 32 columns; buffers are padded to them, and the caller's output is not.
void Program::check_rows(const char* what, Ref ref, Domain domain, std::int64_t columns) const {
    if (!ref) refuse(std::string(what) + " is missing");
    if (ref.buffer >= static_cast<int>(rows_.size())) refuse(std::string(what) + ": there is no buffer " + std::to_string(ref.buffer));
    const RowsBuffer& buffer = rows_[static_cast<std::size_t>(ref.buffer)];
    if (buffer.output) refuse(std::string(what) + ": only products write to the output, and nothing reads it");
    if (buffer.domain != domain) {
        refuse(std::string(what) + ": the rows of buffer " + std::to_string(ref.buffer) + " are " + name_of(buffer.domain) + ", not " + name_of(domain));
    }
    if (ref.column < 0 || ref.column % 8 != 0 || ref.column + columns > buffer.columns ||
        ref.column + round_up(columns, 32) > round_up(buffer.columns, 32)) {
        refuse(std::string(what) + ": columns " + std::to_string(ref.column) + " and " + std::to_string(columns) + " more are not in a buffer of " +
               std::to_string(buffer.columns));
    }
}

// Products write the columns that there are.
void Program::check_product(const Segment& segment, Domain domain) const {
    const std::int64_t columns = segment.matrix.rows;
    if (segment.residual) check_rows("what is added to a product", segment.residual, domain, columns);
    if (!segment.out || segment.out.buffer >= static_cast<int>(rows_.size()) || !rows_[static_cast<std::size_t>(segment.out.buffer)].output) {
        return check_rows("a product's result", segment.out, domain, columns);
    }
    if (domain != kLogits) refuse("the rows of the output are wanted logits, not tokens");
    const int have = rows_[static_cast<std::size_t>(segment.out.buffer)].columns;
    if (segment.out.column < 0 || segment.out.column + columns > have) {
        refuse("a product's result: columns " + std::to_string(segment.out.column) + " and " + std::to_string(columns) + " more are not in an output of " +
               std::to_string(have));
    }
}

void Program::check_tiles(int tiles, Domain domain, std::int64_t columns) const {
    if (tiles < 0 || tiles >= static_cast<int>(tiles_.size())) refuse("there are no tiles " + std::to_string(tiles));
    const TilesBuffer& buffer = tiles_[static_cast<std::size_t>(tiles)];
    if (buffer.groups != groups_of(columns)) refuse("tiles of " + std::to_string(columns) + " columns are not such a buffer");
    if (buffer.domain != domain) refuse("the rows of tiles " + std::to_string(tiles) + " are " + name_of(buffer.domain) + ", not " + name_of(domain));
}

void Program::add(const EmbedOp& op) {
    check_rows("the embedding", op.out, kTokens, op.table.cols);
    limits_.vocabulary = std::min(limits_.vocabulary, op.table.rows);
    append(op);
}

void Program::add(const TokenOp& op) {
    check_columns(op.columns);
    if (op.gather && op.domain != kLogits) refuse("rows are gathered for the wanted logits only");
    const Domain from = op.gather ? kTokens : op.domain;
    check_rows("the input", op.in, from, op.columns);
    if (op.residual) check_rows("what is added", op.residual, from, op.columns);
    if (op.sum) check_rows("the sum", op.sum, op.domain, op.columns);
    if (op.out) check_rows("the result", op.out, op.domain, op.columns);
    if (op.tiles >= 0) check_tiles(op.tiles, op.domain, op.columns);
    need_scratch(groups_of(op.columns) * 32);
    append(op);
}

void Program::add(const HeadNormOp& op) {
    check_columns(op.columns);
    if (op.head_dim < 8 || op.head_dim % 8 != 0 || op.columns % op.head_dim != 0) refuse("head size " + std::to_string(op.head_dim) + " is not a multiple of 8");
    check_rows("the input", op.in, kTokens, op.columns);
    check_rows("the result", op.out, kTokens, op.columns);
    append(op);
}

void Program::add(const RopeOp& op) {
    check_columns(op.columns);
    if (op.head_dim < 1 || op.columns % op.head_dim != 0 || op.table.pairs > op.head_dim / 2) refuse("more dimensions to rotate than a head has");
    check_rows("the input", op.in, kTokens, op.columns);
    check_rows("the result", op.out, kTokens, op.columns);
    limits_.max_position = std::min(limits_.max_position, op.table.max_position);
    append(op);
}

void Program::check_gated(const LinearOp& op, const std::vector<Segment>& segments) const {
    const std::int64_t out = segments[0].matrix.rows;
    if (segments.size() != 2 || segments[1].matrix.rows != out || out % 32 != 0) refuse("gate and up must be alike, with rows a multiple of 32");
    check_columns(out);
    if (op.tiles < 0) refuse("gate and up in one op are quantised");
    if (!op.gated_out && op.gated_tiles < 0) refuse("the result is missing");
    if (op.gated_out) check_rows("the result", op.gated_out, op.domain, out);
    if (op.gated_tiles >= 0) check_tiles(op.gated_tiles, op.domain, out);
}

// Quantising one or two rows is cheaper than a barrier after it: every thread does it for itself, unless others read the
// result too or we add what that op stores. The op's number, or -1.
int Program::prologue_of(const LinearOp& op, const std::vector<Segment>& segments) {
    if (op.tiles < 0) return -1;
    const auto* token = ops_.empty() ? nullptr : std::get_if<TokenOp>(&ops_.back());
    const bool reads = token != nullptr && std::any_of(segments.begin(), segments.end(), [&](const Segment& s) {
        return s.residual && (s.residual.buffer == token->sum.buffer || s.residual.buffer == token->out.buffer);
    });
    TilesBuffer& tiles = tiles_[static_cast<std::size_t>(op.tiles)];
    if (token != nullptr && token->tiles == op.tiles && !reads) {
        tiles.by_token = true;
        return num_ops() - 1;
    }
    tiles.shared = true;
    return -1;
}

void Program::add(LinearOp op, std::vector<Segment> segments) {
    if (segments.empty()) refuse("a product has at least one matrix");
    const Matrix& first = segments[0].matrix;
    if (op.tiles >= 0) check_tiles(op.tiles, op.domain, first.cols);
    else check_rows("the input", op.in, op.domain, first.cols);
    for (const Segment& s : segments) {
        if (s.matrix.cols != first.cols || s.matrix.dense() != (op.tiles < 0)) refuse("matrices of one linear differ in their input");
        if (!op.gated) check_product(s, op.domain);
    }
    std::vector<int> bounds;
    if (op.gated) {
        check_gated(op, segments);
        const int out = static_cast<int>(first.rows);
        need_scratch(4 * out + 64);  // gate and up of two rows
        for (int t = 0; t <= pool_->size(); ++t) bounds.push_back(static_cast<int>(static_cast<std::int64_t>(out / 32) * t / pool_->size()));
    } else {
        bounds = split_blocks(segments, pool_->size());
    }
    const int prologue = prologue_of(op, segments);
    std::size_t bytes = 0;
    for (const Segment& s : segments) bytes += s.matrix.num_bytes();
    segments_.push_back(std::make_unique<std::vector<Segment>>(std::move(segments)));
    bounds_.push_back(std::make_unique<std::vector<int>>(std::move(bounds)));
    op.segments = segments_.back()->data();
    op.num_segments = static_cast<int>(segments_.back()->size());
    op.bounds = bounds_.back()->data();
    const std::int64_t units = op.bounds[pool_->size()];
    append(op, prologue, static_cast<std::int64_t>(bytes) / std::max<std::int64_t>(units, 1));
}

void Program::add(const GateOp& op) {
    check_columns(op.columns);
    check_rows("the gate", op.gate_in, kTokens, op.columns);
    check_rows("what is gated", op.up_in, kTokens, op.columns);
    if (op.out) check_rows("the result", op.out, kTokens, op.columns);
    if (op.tiles >= 0) check_tiles(op.tiles, kTokens, op.columns);
    append(op);
}

void Program::add(const SoftCapOp& op) {
    check_columns(op.columns);
    check_rows("the input", op.in, op.domain, op.columns);
    check_rows("the result", op.out, op.domain, op.columns);
    append(op);
}

void Program::add(AttentionOp op, int num_blocks) {
    if (op.head_dim % 8 != 0 || op.head_dim < 8 || op.head_dim > 256) refuse("head size " + std::to_string(op.head_dim) + " is not a multiple of 8 up to 256");
    if (op.num_kv_heads < 1 || op.num_heads < 1 || op.num_heads % op.num_kv_heads != 0) refuse("query heads must be a multiple of KV heads");
    if (op.num_heads > kMaxColumns / op.head_dim) refuse(std::to_string(op.num_heads) + " heads are too many");
    if (op.window < 0) refuse("a window has no negative size");
    if (op.block_size < 1 || num_blocks < 1 || num_blocks > INT32_MAX / op.block_size) refuse("a KV cache has 1 .. 2147483647 slots");
    const std::int64_t columns = static_cast<std::int64_t>(op.num_heads) * op.head_dim, kv_columns = static_cast<std::int64_t>(op.num_kv_heads) * op.head_dim;
    check_rows("q", op.q, kTokens, columns);
    check_rows("k", op.k, kTokens, kv_columns);
    check_rows("v", op.v, kTokens, kv_columns);
    check_rows("the result", op.out, kTokens, columns);
    if (op.tiles >= 0) check_tiles(op.tiles, kTokens, columns);
    if (op.tiles >= 0 && op.num_heads / op.num_kv_heads * op.head_dim % 32 != 0) refuse("attention cannot quantise heads that share a group");
    for (const RopeTableView* table : {&op.q_rope, &op.k_rope}) {
        if (table->pairs > op.head_dim / 2) refuse("more dimensions to rotate than a head has");
    }
    if (limits_.block_size != 0 && limits_.block_size != op.block_size) refuse("layers with different block sizes");
    for (const RopeTableView* table : {&op.q_rope, &op.k_rope}) {
        if (table->pairs != 0) limits_.max_position = std::min(limits_.max_position, table->max_position);
    }
    limits_.block_size = op.block_size;
    limits_.num_blocks = std::min(limits_.num_blocks, num_blocks);
    op.schedule = -1;
    for (std::size_t i = 0; i < builders_.size(); ++i) {
        if (builders_[i]->fits(op)) op.schedule = static_cast<int>(i);
    }
    if (op.schedule < 0) {
        op.schedule = static_cast<int>(builders_.size());
        builders_.push_back(std::make_unique<ScheduleBuilder>(op, pool_->size()));
    }
    need_scratch(attention_scratch_floats(op));
    append(op);
}

void Program::add(const RouteOp& op) {
    check_columns(op.num_experts);
    if (op.top_k < 1 || op.top_k > op.num_experts) refuse(std::to_string(op.top_k) + " experts per token out of " + std::to_string(op.num_experts));
    check_rows("the router's logits", op.in, kTokens, op.num_experts);
    check_rows("the routing", op.out, kTokens, 2 * static_cast<std::int64_t>(op.top_k));
    need_scratch(groups_of(op.num_experts) * 32);
    append(op);
}

void Program::add(MoeOp op, const std::vector<Matrix>& gates, const std::vector<Matrix>& ups, const std::vector<Matrix>& downs) {
    if (gates.empty() || gates.size() > static_cast<std::size_t>(kMaxColumns) || ups.size() != gates.size() || downs.size() != gates.size()) refuse("every expert has a gate, an up and a down matrix");
    op.num_experts = static_cast<int>(gates.size());
    if (op.top_k < 1 || op.top_k > op.num_experts) refuse(std::to_string(op.top_k) + " experts per token out of " + std::to_string(op.num_experts));
    const Matrix &gate = gates[0], &down = downs[0];
    check_columns(gate.rows);
    for (std::size_t e = 0; e < gates.size(); ++e) {
        for (const Matrix* m : {&gates[e], &ups[e]}) {
            if (m->rows != gate.rows || m->cols != gate.cols) refuse("the experts' gate and up matrices differ in shape");
            if (m->dense() != gate.dense()) refuse("some of the experts' gate and up matrices are quantised, and some are not");
        }
        if (downs[e].rows != gate.cols || downs[e].cols != gate.rows) refuse("the experts' down matrices do not turn their gates' rows into their columns");
        if (downs[e].dense() != down.dense()) refuse("some of the experts' down matrices are quantised, and some are not");
    }
    check_rows("the input", op.in, kTokens, gate.cols);
    check_rows("the routing", op.routing, kTokens, 2 * static_cast<std::int64_t>(op.top_k));
    check_rows("the result", op.out, kTokens, gate.cols);
    need_scratch(2 * groups_of(gate.rows) * 32 + 64);
    for (const std::vector<Matrix>* each : {&gates, &ups, &downs}) experts_.push_back(std::make_unique<std::vector<Matrix>>(*each));
    op.gates = experts_[experts_.size() - 3]->data();
    op.ups = experts_[experts_.size() - 2]->data();
    op.downs = experts_.back()->data();
    op.work = -1;
    for (std::size_t i = 0; i < workspaces_.size(); ++i) {
        if (workspaces_[i]->fits(op)) op.work = static_cast<int>(i);
    }
    if (op.work < 0) {
        op.work = static_cast<int>(workspaces_.size());
        workspaces_.push_back(std::make_unique<MoeWorkspace>(op, pool_->size(), kMaxPieces));
    }
    append(op);
}

const char* Program::op_name(int op) const {
    static constexpr const char* names[] = {"embed", "token", "head_norm", "rope", "linear", "gate", "soft_cap", "attention", "route", "experts"};
    const Op& o = ops_.at(static_cast<std::size_t>(op));
    if (const auto* linear = std::get_if<LinearOp>(&o)) {
        if (linear->gated) return "linear_gated";
        if (linear->domain == kLogits) return "linear_logits";
        return linear->num_segments > 1 ? "linear_joined" : "linear";
    }
    return names[o.index()];
}

}  // namespace slipstream
