#include "bind/cpu_program.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bind/cpu_kernels.h"
#include "bind/packed_matrix.h"
#include "runtime/program.h"
#include "runtime/thread_pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using slipstream::Domain;
using slipstream::Matrix;
using slipstream::PackedMatrix;
using slipstream::Program;
using slipstream::Ref;
using slipstream::ThreadPool;

using Ints = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints2 = nb::ndarray<const std::int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using InFloats2 = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OutFloats2 = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Cache = nb::ndarray<nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Place = std::pair<int, int>;  // (buffer, column); buffer -1: none
using RopeTable = std::tuple<OutFloats2, OutFloats2, bool>;

Ref ref(const Place& place) { return {place.first, place.second}; }

// A program and the Python objects whose memory it reads.
class BoundProgram {
  public:
    BoundProgram(std::shared_ptr<ThreadPool> pool, const std::string& kernels) : program_(slipstream::kernels_by_name(kernels), std::move(pool)) {}

    int add_rows(int domain, int columns) { return program_.add_rows(checked(domain), columns); }
    int add_output(int columns) {
        const int buffer = program_.add_output(columns);
        output_columns_ = columns;
        return buffer;
    }
    int add_input(int columns) {
        const int buffer = program_.add_input(columns);
        input_columns_ = columns;
        return buffer;
    }
    int add_tiles(int domain, int columns) { return program_.add_tiles(checked(domain), columns); }

    void embed(const nb::object& table, float scale, const Place& out) {
        slipstream::EmbedOp op;
        op.table = matrix(table);
        op.scale = scale;
        op.out = ref(out);
        program_.add(op);
    }

    void token(int domain, int columns, const Place& in, bool gather, const std::optional<Floats>& post_weight, float post_eps,
               float scale, const Place& residual, const Place& sum, const std::optional<Floats>& weight, float eps,
               const Place& out, int tiles) {
        slipstream::TokenOp op;
        op.domain = checked(domain);
        op.columns = columns;
        op.in = ref(in);
        op.gather = gather;
        op.post_weight = vector(post_weight, padded(columns));
        op.post_eps = post_eps;
        op.scale = scale;
        op.residual = ref(residual);
        op.sum = ref(sum);
        op.weight = vector(weight, padded(columns));
        op.eps = eps;
        op.out = ref(out);
        op.tiles = tiles;
        program_.add(op);
    }

    void head_norm(int columns, int head_dim, const Place& in, const Place& out, const Floats& weight, float eps) {
        slipstream::HeadNormOp op;
        op.columns = columns;
        op.head_dim = head_dim;
        op.in = ref(in);
        op.out = ref(out);
        op.weight = vector(weight, head_dim);
        op.eps = eps;
        program_.add(op);
    }

    void rope(int columns, int head_dim, const Place& in, const Place& out, const RopeTable& table) {
        slipstream::RopeOp op;
        op.columns = columns;
        op.head_dim = head_dim;
        op.in = ref(in);
        op.out = ref(out);
        op.table = rope_view(table);
        program_.add(op);
    }

    using SegmentSpec = std::tuple<nb::object, std::optional<Floats>, Place, Place, float>;  // matrix, bias, residual, out, cap

    void linear(int domain, int tiles, const Place& in, const std::vector<SegmentSpec>& specs) {
        slipstream::LinearOp op;
        op.domain = checked(domain);
        op.tiles = tiles;
        op.in = ref(in);
        std::vector<slipstream::Segment> segments;
        for (const auto& [m, bias, residual, out, cap] : specs) segments.push_back(segment(m, bias, residual, out, cap));
        program_.add(op, std::move(segments));
    }

    void linear_gated(int domain, int tiles, const nb::object& gate, const nb::object& up, const std::string& kind, const Place& out,
                      int out_tiles) {
        slipstream::LinearOp op;
        op.domain = checked(domain);
        op.tiles = tiles;
        op.gated = true;
        op.gate = gate_kind(kind);
        op.gated_out = ref(out);
        op.gated_tiles = out_tiles;
        program_.add(op, {segment(gate, std::nullopt, {-1, 0}, {-1, 0}, 0.0f), segment(up, std::nullopt, {-1, 0}, {-1, 0}, 0.0f)});
    }

    void gate(int columns, const std::string& kind, const Place& gate_in, const Place& up_in, const Place& out, int tiles) {
        slipstream::GateOp op;
        op.columns = columns;
        op.gate = gate_kind(kind);
        op.gate_in = ref(gate_in);
        op.up_in = ref(up_in);
        op.out = ref(out);
        op.tiles = tiles;
        program_.add(op);
    }

    void soft_cap(int domain, int columns, float cap, const Place& in, const Place& out) {
        slipstream::SoftCapOp op;
        op.domain = checked(domain);
        op.columns = columns;
        op.cap = cap;
        op.in = ref(in);
        op.out = ref(out);
        program_.add(op);
    }

    using NormRope = std::tuple<std::optional<Floats>, float, std::optional<RopeTable>>;

    void attention(int num_heads, int num_kv_heads, int head_dim, float scale, int window, float cap, const Place& q, const Place& k,
                   const Place& v, const Place& out, int tiles, const NormRope& q_prologue, const NormRope& k_prologue,
                   const std::string& kv_dtype, int block_size, int num_blocks, const Cache& cache) {
        slipstream::AttentionOp op;
        op.num_heads = num_heads;
        op.num_kv_heads = num_kv_heads;
        op.head_dim = head_dim;
        op.scale = scale;
        op.window = window;
        op.soft_cap = cap;
        op.q = ref(q);
        op.k = ref(k);
        op.v = ref(v);
        op.out = ref(out);
        op.tiles = tiles;
        op.q_norm = vector(std::get<0>(q_prologue), head_dim);
        op.q_eps = std::get<1>(q_prologue);
        if (std::get<2>(q_prologue)) op.q_rope = rope_view(*std::get<2>(q_prologue));
        op.k_norm = vector(std::get<0>(k_prologue), head_dim);
        op.k_eps = std::get<1>(k_prologue);
        if (std::get<2>(k_prologue)) op.k_rope = rope_view(*std::get<2>(k_prologue));
        op.kv_type = kv_dtype == "float16" ? slipstream::KVType::F16 : kv_dtype == "bfloat16" ? slipstream::KVType::BF16 : slipstream::KVType::F32;
        if (op.kv_type == slipstream::KVType::F32 && kv_dtype != "float32") throw std::invalid_argument("no KV cache of " + kv_dtype);
        const std::size_t element = op.kv_type == slipstream::KVType::F32 ? 4 : 2;
        op.block_size = positive(block_size);
        // Sizes that no cache has, and whose product would not fit, are refused by `add`.
        const std::size_t elements = static_cast<std::size_t>(positive(num_blocks)) * static_cast<std::size_t>(positive(num_kv_heads)) * 2 *
                                     static_cast<std::size_t>(block_size) * static_cast<std::size_t>(positive(head_dim));
        if (cache.nbytes() != elements * element) throw std::invalid_argument("the KV cache has the wrong size");
        op.cache = cache.data();
        keep(cache);
        program_.add(op, num_blocks);
    }

    void route(int num_experts, int top_k, bool normalise, const Place& in, const Place& out) {
        slipstream::RouteOp op;
        op.num_experts = num_experts;
        op.top_k = top_k;
        op.normalise = normalise;
        op.in = ref(in);
        op.out = ref(out);
        program_.add(op);
    }

    using ExpertSpec = std::tuple<nb::object, nb::object, nb::object>;  // gate, up, down

    void experts(int top_k, const std::string& kind, const Place& in, const Place& routing, const Place& out, const std::vector<ExpertSpec>& specs) {
        slipstream::MoeOp op;
        op.top_k = top_k;
        op.gate = gate_kind(kind);
        op.in = ref(in);
        op.routing = ref(routing);
        op.out = ref(out);
        std::vector<Matrix> gates, ups, downs;
        for (const auto& [gate, up, down] : specs) {
            gates.push_back(matrix(gate));
            ups.push_back(matrix(up));
            downs.push_back(matrix(down));
        }
        program_.add(op, gates, ups, downs);
    }

    void run(const Ints& token_ids, const Ints& positions, const Ints& slots, const Ints& query_start, const Ints& kv_len,
             const Ints2& block_table, const Ints& logits_rows, const OutFloats2& output, const std::optional<InFloats2>& input) {
        slipstream::BatchArrays batch;
        batch.num_tokens = static_cast<int>(token_ids.size());
        batch.num_rows = static_cast<int>(kv_len.size());
        batch.num_logits = static_cast<int>(logits_rows.size());
        batch.table_width = static_cast<int>(block_table.shape(1));
        if (positions.size() != token_ids.size() || slots.size() != token_ids.size() || query_start.size() != kv_len.size() + 1 ||
            block_table.shape(0) != kv_len.size() || output.shape(0) != logits_rows.size() ||
            output.shape(1) != static_cast<std::size_t>(output_columns_) || input.has_value() != (input_columns_ != 0) ||
            (input && (input->shape(0) != token_ids.size() || input->shape(1) != static_cast<std::size_t>(input_columns_)))) {
            throw std::invalid_argument("the batch's arrays do not belong together");
        }
        batch.token_ids = token_ids.data();
        batch.positions = positions.data();
        batch.slots = slots.data();
        batch.query_start = query_start.data();
        batch.kv_len = kv_len.data();
        batch.block_table = block_table.data();
        batch.logits_rows = logits_rows.data();
        const nb::gil_scoped_release unlocked;
        program_.run(batch, output.data(), input ? input->data() : nullptr);
    }

    void copy_rows(int buffer, const OutFloats2& out) {
        program_.copy_rows(buffer, static_cast<int>(out.shape(0)), static_cast<int>(out.shape(1)), out.data());
    }

    void set_profiling(bool on) { program_.set_profiling(on); }

    std::vector<std::pair<std::string, double>> profile() const {
        std::vector<std::pair<std::string, double>> out;
        for (std::size_t i = 0; i < program_.profile().size(); ++i) out.emplace_back(program_.op_name(static_cast<int>(i)), program_.profile()[i]);
        return out;
    }

    int num_ops() const { return program_.num_ops(); }

  private:
    static Domain checked(int domain) {
        if (domain != slipstream::kTokens && domain != slipstream::kLogits) throw std::invalid_argument("domain is 0 or 1");
        return static_cast<Domain>(domain);
    }
    static int positive(int n) {
        if (n < 1) throw std::invalid_argument("a size must be positive");
        return n;
    }
    static slipstream::Gate gate_kind(const std::string& kind) {
        if (kind == "silu") return slipstream::Gate::Silu;
        if (kind == "gelu_tanh") return slipstream::Gate::GeluTanh;
        throw std::invalid_argument("no activation " + kind);
    }
    template <class Array>
    void keep(const Array& array) {
        arrays_.push_back(std::make_shared<Array>(array));
    }
    const Matrix& matrix(const nb::object& object) {
        objects_.push_back(object);
        return nb::cast<const PackedMatrix&>(object).view();
    }
    static std::int64_t padded(std::int64_t columns) { return (columns + 31) / 32 * 32; }
    const float* vector(const std::optional<Floats>& array, std::int64_t size) {
        if (!array) return nullptr;
        if (static_cast<std::int64_t>(array->size()) < size) {
            throw std::invalid_argument("a vector has " + std::to_string(array->size()) + " numbers, " + std::to_string(size) + " are needed");
        }
        keep(*array);
        return array->data();
    }
    slipstream::RopeTableView rope_view(const RopeTable& table) {
        const auto& [cos, sin, interleaved] = table;
        if (cos.shape(0) != sin.shape(0) || cos.shape(1) != sin.shape(1) || cos.shape(1) == 0) throw std::invalid_argument("cos and sin differ in shape");
        keep(cos);
        keep(sin);
        return {cos.data(), sin.data(), static_cast<int>(cos.shape(1)), static_cast<int>(cos.shape(0)), interleaved};
    }
    slipstream::Segment segment(const nb::object& m, const std::optional<Floats>& bias, const Place& residual, const Place& out, float cap) {
        slipstream::Segment s;
        s.matrix = matrix(m);
        s.bias = vector(bias, (s.matrix.rows + 15) / 16 * 16);
        s.residual = ref(residual);
        s.out = ref(out);
        s.soft_cap = cap;
        return s;
    }

    Program program_;
    std::vector<nb::object> objects_;
    std::vector<std::shared_ptr<void>> arrays_;
    int output_columns_ = 0;
    int input_columns_ = 0;
};

}  // namespace

void bind_cpu_program(nb::module_& m) {
    nb::class_<BoundProgram>(m, "Program")
        .def(nb::init<std::shared_ptr<ThreadPool>, const std::string&>(), "pool"_a, "kernels"_a)
        .def("add_rows", &BoundProgram::add_rows, "domain"_a, "columns"_a)
        .def("add_output", &BoundProgram::add_output, "columns"_a)
        .def("add_input", &BoundProgram::add_input, "columns"_a)
        .def("add_tiles", &BoundProgram::add_tiles, "domain"_a, "columns"_a)
        .def("embed", &BoundProgram::embed, "table"_a, "scale"_a, "out"_a)
        .def("token", &BoundProgram::token, "domain"_a, "columns"_a, "input"_a, "gather"_a, "post_weight"_a.none(), "post_eps"_a, "scale"_a,
             "residual"_a, "sum"_a, "weight"_a.none(), "eps"_a, "out"_a, "tiles"_a)
        .def("head_norm", &BoundProgram::head_norm, "columns"_a, "head_dim"_a, "input"_a, "out"_a, "weight"_a, "eps"_a)
        .def("rope", &BoundProgram::rope, "columns"_a, "head_dim"_a, "input"_a, "out"_a, "table"_a)
        .def("linear", &BoundProgram::linear, "domain"_a, "tiles"_a, "input"_a, "segments"_a)
        .def("linear_gated", &BoundProgram::linear_gated, "domain"_a, "tiles"_a, "gate"_a, "up"_a, "kind"_a, "out"_a, "out_tiles"_a)
        .def("gate", &BoundProgram::gate, "columns"_a, "kind"_a, "gate_in"_a, "up_in"_a, "out"_a, "tiles"_a)
        .def("soft_cap", &BoundProgram::soft_cap, "domain"_a, "columns"_a, "cap"_a, "input"_a, "out"_a)
        .def("attention", &BoundProgram::attention, "num_heads"_a, "num_kv_heads"_a, "head_dim"_a, "scale"_a, "window"_a, "cap"_a, "q"_a,
             "k"_a, "v"_a, "out"_a, "tiles"_a, "q_prologue"_a, "k_prologue"_a, "kv_dtype"_a, "block_size"_a, "num_blocks"_a, "cache"_a)
        .def("route", &BoundProgram::route, "num_experts"_a, "top_k"_a, "normalise"_a, "input"_a, "out"_a)
        .def("experts", &BoundProgram::experts, "top_k"_a, "kind"_a, "input"_a, "routing"_a, "out"_a, "experts"_a)
        .def("run", &BoundProgram::run, "token_ids"_a, "positions"_a, "slots"_a, "query_start"_a, "kv_len"_a, "block_table"_a,
             "logits_rows"_a, "output"_a.noconvert(), "input"_a.none() = nb::none())
        .def("copy_rows", &BoundProgram::copy_rows, "buffer"_a, "out"_a.noconvert())
        .def("set_profiling", &BoundProgram::set_profiling, "on"_a)
        .def("profile", &BoundProgram::profile)
        .def_prop_ro("num_ops", &BoundProgram::num_ops);
}
