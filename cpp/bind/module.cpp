#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <stdexcept>

#include "bind/cpu_backend.h"
#include "bind/sampler.h"
#include "bind/strings.h"
#include "bind/suffix.h"
#include "hw/cpu_features.h"
#include "kernels/convert.h"
#include "kernels/permute.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using InputU16 = nb::ndarray<const std::uint16_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OutputF32 = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using InputBytes = nb::ndarray<const std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OutputBytes = nb::ndarray<std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

bool overlap(const void* a, const void* b, std::size_t num_bytes) {
    const auto x = reinterpret_cast<std::uintptr_t>(a), y = reinterpret_cast<std::uintptr_t>(b);
    return x < y + num_bytes && y < x + num_bytes;
}

using Convert = void (*)(const std::uint16_t*, float*, std::size_t);

void convert(Convert kernel, const InputU16& src, const OutputF32& out) {
    if (src.size() != out.size()) throw std::invalid_argument("src and out must have the same number of elements");
    const nb::gil_scoped_release unlocked;
    kernel(src.data(), out.data(), src.size());
}

void unpermute_rows(const InputBytes& src, const OutputBytes& out, std::size_t num_heads) {
    const std::size_t num_rows = src.shape(0), row_bytes = src.shape(1);
    if (out.shape(0) != num_rows || out.shape(1) != row_bytes) {
        throw std::invalid_argument("src and out must have the same shape");
    }
    if (num_heads == 0 || num_rows % (2 * num_heads) != 0) {
        throw std::invalid_argument("the number of rows must be a multiple of 2 * num_heads, and num_heads positive");
    }
    if (overlap(src.data(), out.data(), num_rows * row_bytes)) throw std::invalid_argument("src and out overlap");
    const nb::gil_scoped_release unlocked;
    slipstream::unpermute_rows(src.data(), out.data(), num_rows, row_bytes, num_heads);
}

}  // namespace

NB_MODULE(_native, m) {
    // A forked child that leaves by sys.exit frees nothing, and would print a report of it.
    nb::set_leak_warnings(false);
    m.def("cpu_features", &slipstream::cpu_features);
    m.def(
        "f16_to_f32", [](const InputU16& src, const OutputF32& out) { convert(slipstream::f16_to_f32, src, out); },
        "src"_a.noconvert(), "out"_a.noconvert());
    m.def(
        "bf16_to_f32", [](const InputU16& src, const OutputF32& out) { convert(slipstream::bf16_to_f32, src, out); },
        "src"_a.noconvert(), "out"_a.noconvert());
    m.def("unpermute_rows", &unpermute_rows, "src"_a.noconvert(), "out"_a.noconvert(), "num_heads"_a);
    bind_cpu_backend(m);
    bind_sampler(m);
    bind_strings(m);
    bind_suffix(m);
}
