#include "bind/cpu_backend.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "hw/cpu_features.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/pack.h"
#include "runtime/aligned.h"
#include "runtime/program.h"
#include "runtime/thread_pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using slipstream::Domain;
using slipstream::Matrix;
using slipstream::Program;
using slipstream::Ref;
using slipstream::ThreadPool;

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints2 = nb::ndarray<const std::int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OutFloats = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OutFloats2 = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Cache = nb::ndarray<nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Place = std::pair<int, int>;  // (buffer, column); buffer -1: none
using RopeTable = std::tuple<OutFloats2, OutFloats2, bool>;

// The empty matrix of this type and shape; `type` says how a file keeps it.
Matrix matrix_of(const std::string& dtype, std::int64_t rows, std::int64_t cols, slipstream::SourceType& type) {
    if (!slipstream::find_source_type(dtype, type)) throw std::invalid_argument("no packed form for " + dtype);
    if (rows < 1 || cols < 1 || rows > INT32_MAX / 2 || cols > INT32_MAX / 2) throw std::invalid_argument("a matrix has at least one row and column");
    if (cols % type.block_columns != 0) {
        throw std::invalid_argument(std::to_string(cols) + " columns are not a multiple of " + dtype + "'s block of " +
                                    std::to_string(type.block_columns));
    }
    Matrix matrix;
    matrix.format = type.format;
    matrix.rows = rows;
    matrix.cols = cols;
    return matrix;
}

std::size_t packed_num_bytes(const std::string& dtype, std::int64_t rows, std::int64_t cols) {
    slipstream::SourceType type;
    return matrix_of(dtype, rows, cols, type).num_bytes();
}

void check_num_bytes(const std::string& dtype, std::int64_t rows, std::int64_t cols, std::size_t have, std::size_t expected) {
    if (have == expected) return;
    throw std::invalid_argument(std::to_string(have) + " bytes, but " + std::to_string(rows) + " x " + std::to_string(cols) + " " +
                                dtype + " take " + std::to_string(expected));
}

class PackedMatrix {
  public:
    // Over bytes that were packed before and stay as they are, with at least 64 readable bytes behind them.
    PackedMatrix(const std::string& dtype, std::int64_t rows, std::int64_t cols, const Bytes& packed) : owner_(packed) {
        slipstream::SourceType type;
        matrix_ = matrix_of(dtype, rows, cols, type);
        check_num_bytes(dtype, rows, cols, packed.size(), matrix_.num_bytes());
        if (reinterpret_cast<std::uintptr_t>(packed.data()) % 64 != 0) throw std::invalid_argument("packed bytes start at a multiple of 64");
        matrix_.data = packed.data();
    }

    PackedMatrix(const std::string& dtype, std::int64_t rows, std::int64_t cols, const Bytes& source, ThreadPool& pool) {
        slipstream::SourceType type;
        matrix_ = matrix_of(dtype, rows, cols, type);
        check_num_bytes(dtype, rows, cols, source.size(), static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols / type.block_columns) *
                                                              static_cast<std::size_t>(type.block_bytes));
        // Kernels read whole vectors and prefetch ahead.
        data_ = slipstream::aligned_zeros<std::uint8_t>(matrix_.num_bytes() + 64);
        matrix_.data = data_.get();
        struct Job {
            const Matrix& matrix;
            const std::string& dtype;
            const std::uint8_t* source;
            std::uint8_t* out;
            int threads;
            std::atomic<bool> finite{true};
        } job{matrix_, dtype, source.data(), data_.get(), pool.size()};
        const nb::gil_scoped_release unlocked;
        pool.run(
            [](void* context, int thread) {
                Job& j = *static_cast<Job*>(context);
                const std::int64_t n = j.matrix.num_blocks();
                if (!slipstream::pack_blocks(j.matrix, j.dtype, j.source, n * thread / j.threads, n * (thread + 1) / j.threads, j.out)) {
                    j.finite.store(false);
                }
            },
            &job);
        if (!job.finite.load()) throw std::invalid_argument("holds numbers that are not finite (infinity or NaN)");
    }

    const Matrix& view() const { return matrix_; }
    std::int64_t rows() const { return matrix_.rows; }
    std::int64_t cols() const { return matrix_.cols; }
    std::size_t num_bytes() const { return matrix_.num_bytes(); }
    bool dense() const { return matrix_.dense(); }

    void unpack_row(std::int64_t row, const OutFloats& out) const {
        if (row < 0 || row >= matrix_.rows) throw std::out_of_range("row " + std::to_string(row) + " of " + std::to_string(matrix_.rows));
        if (out.size() < static_cast<std::size_t>((matrix_.cols + 31) / 32 * 32)) throw std::invalid_argument("out must hold the columns, rounded up to 32");
        slipstream::unpack_row(matrix_, row, out.data());
    }

  private:
    slipstream::Aligned<std::uint8_t> data_;
    Bytes owner_;  // of bytes that are not data_
    Matrix matrix_;
};

const slipstream::KernelTable& kernels_by_name(const std::string& name) {
    if (name == "scalar") return slipstream::scalar_kernels();
#if defined(__x86_64__)
    if (name == "avx2") {
        const std::vector<std::string> have = slipstream::cpu_features();
        for (const char* need : {"avx2", "fma", "f16c"}) {
            if (std::find(have.begin(), have.end(), need) == have.end()) throw std::invalid_argument(std::string("this processor has no ") + need);
        }
        return slipstream::avx2_kernels();
    }
#endif
    throw std::invalid_argument("no kernels for " + name);
}

std::vector<std::string> kernel_sets() {
    std::vector<std::string> names;
#if defined(__x86_64__)
    const std::vector<std::string> have = slipstream::cpu_features();
    const auto has = [&](const char* name) { return std::find(have.begin(), have.end(), name) != have.end(); };
    if (has("avx2") && has("fma") && has("f16c")) names.emplace_back("avx2");
#endif
    names.emplace_back("scalar");
    return names;
}

Ref ref(const Place& place) { return {place.first, place.second}; }

// A program and the Python objects whose memory it reads.
class BoundProgram {
  public:
    BoundProgram(std::shared_ptr<ThreadPool> pool, const std::string& kernels) : program_(kernels_by_name(kernels), std::move(pool)) {}

    int add_rows(int domain, int columns) { return program_.add_rows(checked(domain), positive(columns)); }
    int add_output(int columns) {
        output_columns_ = columns;
        return program_.add_output(positive(columns));
    }
    int add_tiles(int domain, int columns) { return program_.add_tiles(checked(domain), positive(columns)); }

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
        op.post_weight = vector(post_weight, (columns + 31) / 32 * 32);
        op.post_eps = post_eps;
        op.scale = scale;
        op.residual = ref(residual);
        op.sum = ref(sum);
        op.weight = vector(weight, (columns + 31) / 32 * 32);
        op.eps = eps;
        op.out = ref(out);
        op.tiles = tiles;
        program_.add(op);
    }

    void head_norm(int columns, int head_dim, const Place& in, const Place& out, const Floats& weight, float eps) {
        slipstream::HeadNormOp op;
        op.columns = columns;
        op.head_dim = head_dim;
        if (head_dim < 8 || head_dim % 8 != 0 || columns % head_dim != 0) throw std::invalid_argument("head size " + std::to_string(head_dim) + " is not a multiple of 8");
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
        if (head_dim < 1 || columns % head_dim != 0 || 2 * op.table.pairs > head_dim) throw std::invalid_argument("more dimensions to rotate than a head has");
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
        if (segments.empty()) throw std::invalid_argument("a linear has at least one matrix");
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
        const std::size_t elements = static_cast<std::size_t>(positive(num_blocks)) * static_cast<std::size_t>(positive(num_kv_heads)) * 2 *
                                     static_cast<std::size_t>(block_size) * static_cast<std::size_t>(positive(head_dim));
        if (cache.nbytes() != elements * element) throw std::invalid_argument("the KV cache has the wrong size");
        op.cache = cache.data();
        keep(cache);
        program_.add(op, num_blocks);
    }

    void run(const Ints& token_ids, const Ints& positions, const Ints& slots, const Ints& query_start, const Ints& kv_len,
             const Ints2& block_table, const Ints& logits_rows, const OutFloats2& output) {
        slipstream::BatchArrays batch;
        batch.num_tokens = static_cast<int>(token_ids.size());
        batch.num_rows = static_cast<int>(kv_len.size());
        batch.num_logits = static_cast<int>(logits_rows.size());
        batch.table_width = static_cast<int>(block_table.shape(1));
        if (positions.size() != token_ids.size() || slots.size() != token_ids.size() || query_start.size() != kv_len.size() + 1 ||
            block_table.shape(0) != kv_len.size() || output.shape(0) != logits_rows.size() ||
            output.shape(1) != static_cast<std::size_t>(output_columns_)) {
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
        program_.run(batch, output.data());
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
    const float* vector(const std::optional<Floats>& array, int size) {
        if (!array) return nullptr;
        if (array->size() < static_cast<std::size_t>(size)) throw std::invalid_argument("a vector has " + std::to_string(array->size()) + " numbers, " + std::to_string(size) + " are needed");
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
        s.bias = vector(bias, static_cast<int>((s.matrix.rows + 15) / 16 * 16));
        s.residual = ref(residual);
        s.out = ref(out);
        s.soft_cap = cap;
        return s;
    }

    Program program_;
    std::vector<nb::object> objects_;
    std::vector<std::shared_ptr<void>> arrays_;
    int output_columns_ = 0;
};

// What all threads together reach, by name: multiply-adds per second, bytes per second.
std::vector<std::pair<std::string, double>> ceilings(ThreadPool& pool, const std::string& kernels, std::size_t num_bytes, int rounds) {
    struct Job {
        const slipstream::KernelTable& table;
        int what, threads;
        const std::uint8_t* data;
        std::int64_t bytes;  // per thread
        std::atomic<std::int64_t> work{0};
    };
    const slipstream::KernelTable& table = kernels_by_name(kernels);
    const auto per_thread = static_cast<std::int64_t>(num_bytes / static_cast<std::size_t>(pool.size()) / 1024 * 1024);
    if (per_thread < 1024 || rounds < 1) throw std::invalid_argument("num_bytes must be at least 1024 per thread, rounds 1 or more");
    const auto data = slipstream::aligned_zeros<std::uint8_t>(static_cast<std::size_t>(per_thread) * static_cast<std::size_t>(pool.size()));
    std::fill_n(data.get(), per_thread * pool.size(), std::uint8_t{1});
    const nb::gil_scoped_release unlocked;
    std::vector<std::pair<std::string, double>> out;
    const char* const names[] = {"maddubs", "fma", "read"};
    for (int what = 0; what < 3; ++what) {
        double best = 0.0;
        for (int round = 0; round < rounds; ++round) {
            Job job{table, what, pool.size(), data.get(), per_thread};
            const auto start = std::chrono::steady_clock::now();
            pool.run(
                [](void* context, int thread) {
                    Job& j = *static_cast<Job*>(context);
                    float sink = 0.0f;
                    std::int64_t work = j.bytes;
                    if (j.what == 0) work = j.table.spin_maddubs(1 << 20, &sink);
                    else if (j.what == 1) work = j.table.spin_fma(1 << 19, &sink);
                    else j.table.read_streams(j.data + j.bytes * thread, j.bytes, &sink);
                    j.work.fetch_add(work + (sink == 0.123f ? 1 : 0));
                },
                &job);
            const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
            best = std::max(best, static_cast<double>(job.work.load()) / seconds);
        }
        out.emplace_back(names[what], best);
    }
    return out;
}

}  // namespace

void bind_cpu_backend(nb::module_& m) {
    m.def("kernel_sets", &kernel_sets);
    m.def("ceilings", &ceilings, "pool"_a, "kernels"_a, "num_bytes"_a, "rounds"_a);
    nb::class_<ThreadPool>(m, "ThreadPool")
        .def("__init__",
             [](ThreadPool* self, int num_threads) {
                 if (num_threads < 1 || num_threads > 1024) throw std::invalid_argument("num_threads must be 1 .. 1024");
                 new (self) ThreadPool(num_threads);
             }, "num_threads"_a)
        .def_prop_ro("num_threads", &ThreadPool::size)
        .def("stall", &ThreadPool::set_stall, "thread"_a, "microseconds"_a);
    nb::class_<PackedMatrix>(m, "PackedMatrix")
        .def(nb::init<const std::string&, std::int64_t, std::int64_t, const Bytes&, ThreadPool&>(), "dtype"_a, "rows"_a, "cols"_a, "source"_a.noconvert(), "pool"_a)
        .def_static(
            "adopt",
            [](const std::string& dtype, std::int64_t rows, std::int64_t cols, const Bytes& packed) {
                return PackedMatrix(dtype, rows, cols, packed);
            },
            "dtype"_a, "rows"_a, "cols"_a, "packed"_a.noconvert())
        .def_static("size_of", &packed_num_bytes, "dtype"_a, "rows"_a, "cols"_a)
        .def_prop_ro("data",
                     [](nb::handle_t<PackedMatrix> self) {
                         const Matrix& matrix = nb::cast<const PackedMatrix&>(self).view();
                         return nb::ndarray<nb::numpy, const std::uint8_t, nb::ndim<1>>(matrix.data, {matrix.num_bytes()}, self);
                     })
        .def_prop_ro("rows", &PackedMatrix::rows)
        .def_prop_ro("cols", &PackedMatrix::cols)
        .def_prop_ro("nbytes", &PackedMatrix::num_bytes)
        .def_prop_ro("dense", &PackedMatrix::dense)
        .def("unpack_row", &PackedMatrix::unpack_row, "row"_a, "out"_a.noconvert());
    nb::class_<BoundProgram>(m, "Program")
        .def(nb::init<std::shared_ptr<ThreadPool>, const std::string&>(), "pool"_a, "kernels"_a)
        .def("add_rows", &BoundProgram::add_rows, "domain"_a, "columns"_a)
        .def("add_output", &BoundProgram::add_output, "columns"_a)
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
        .def("run", &BoundProgram::run, "token_ids"_a, "positions"_a, "slots"_a, "query_start"_a, "kv_len"_a, "block_table"_a,
             "logits_rows"_a, "output"_a.noconvert())
        .def("copy_rows", &BoundProgram::copy_rows, "buffer"_a, "out"_a.noconvert())
        .def("set_profiling", &BoundProgram::set_profiling, "on"_a)
        .def("profile", &BoundProgram::profile)
        .def_prop_ro("num_ops", &BoundProgram::num_ops);
}
