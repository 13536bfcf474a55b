#include "bind/strings.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>

#if __has_include(<malloc.h>)
#include <malloc.h>
#endif

#include <cstdint>
#include <cstring>
#include <utility>

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Reads strings as GGUF stores them, a 64-bit length and UTF-8 each. Stops before one that is not whole or not UTF-8.
std::pair<nb::list, std::uint64_t> read_strings(const Bytes& data, std::uint64_t start, std::uint64_t count) {
    const std::uint64_t size = data.size();
    nb::list strings;
    for (std::uint64_t i = 0; i < count && start <= size && size - start >= 8; ++i) {
        std::uint64_t length;
        std::memcpy(&length, data.data() + start, 8);
        if (length > size - start - 8) break;
        PyObject* text = PyUnicode_DecodeUTF8(reinterpret_cast<const char*>(data.data() + start + 8), static_cast<Py_ssize_t>(length), "strict");
        if (text == nullptr) {
            PyErr_Clear();
            break;
        }
        strings.append(nb::steal(text));
        start += 8 + length;
    }
    return {strings, start};
}

// "left right" as (left, right). Stops before an entry without exactly one space, or that does not join two keys of `vocab`
// to a third.
nb::list split_merges(const nb::list& merges, const nb::dict& vocab) {
    nb::list pairs;
    for (nb::handle entry : merges) {
        if (!PyUnicode_Check(entry.ptr())) break;
        const Py_ssize_t length = PyUnicode_GET_LENGTH(entry.ptr());
        const Py_ssize_t at = PyUnicode_FindChar(entry.ptr(), ' ', 0, length, 1);
        if (at < 0 || PyUnicode_FindChar(entry.ptr(), ' ', at + 1, length, 1) >= 0) break;
        const nb::object left = nb::steal(PyUnicode_Substring(entry.ptr(), 0, at));
        const nb::object right = nb::steal(PyUnicode_Substring(entry.ptr(), at + 1, length));
        const nb::object joined = nb::steal(PyUnicode_Concat(left.ptr(), right.ptr()));
        if (!joined.is_valid()) throw nb::python_error();
        if (!vocab.contains(left) || !vocab.contains(right) || !vocab.contains(joined)) break;
        pairs.append(nb::make_tuple(left, right));
    }
    return pairs;
}

// What building a vocabulary has freed lies scattered over the heap, and stays resident until it is given back.
void return_free_memory() {
#if defined(__GLIBC__)
    malloc_trim(0);
#endif
}

}  // namespace

void bind_strings(nb::module_& m) {
    m.def("read_strings", &read_strings, "data"_a, "start"_a, "count"_a);
    m.def("return_free_memory", &return_free_memory, nb::call_guard<nb::gil_scoped_release>());
    m.def("split_merges", &split_merges, "merges"_a, "vocab"_a);
}
