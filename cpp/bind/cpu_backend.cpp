#include "bind/cpu_backend.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bind/cpu_kernels.h"
#include "bind/cpu_program.h"
#include "bind/packed_matrix.h"
#include "runtime/aligned.h"
#include "runtime/thread_pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using slipstream::Array2;
using slipstream::Bytes;
using slipstream::Matrix;
using slipstream::PackedMatrix;
using slipstream::ThreadPool;

// What all threads together reach, by name: multiply-adds per second, bytes per second.
std::vector<std::pair<std::string, double>> ceilings(ThreadPool& pool, const std::string& kernels, std::size_t num_bytes, int rounds) {
    struct Job {
        const slipstream::KernelTable& table;
        int what, threads;
        const std::uint8_t* data;
        std::int64_t bytes;  // per thread
        std::atomic<std::int64_t> work{0};
    };
    const slipstream::KernelTable& table = slipstream::kernels_by_name(kernels);
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
    m.def("kernel_sets", &slipstream::kernel_sets);
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
        .def_static(
            "from_arrays",
            [](const std::string& dtype, const Array2& quants, const Array2& scales, const std::optional<Array2>& minima, ThreadPool& pool) {
                return PackedMatrix(dtype, quants, scales, minima ? &*minima : nullptr, pool);
            },
            "dtype"_a, "quants"_a.noconvert(), "scales"_a.noconvert(), "minima"_a.noconvert().none(), "pool"_a)
        .def_static("size_of", &PackedMatrix::size_of, "dtype"_a, "rows"_a, "cols"_a)
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
    bind_cpu_program(m);
}
