#include "bind/packed_matrix.h"

#include <atomic>
#include <stdexcept>

#include "kernels/cpu/pack.h"

namespace slipstream {
namespace {

// The empty matrix of this type and shape; `type` says how a file keeps it.
Matrix matrix_of(const std::string& dtype, std::int64_t rows, std::int64_t cols, SourceType& type) {
    if (!find_source_type(dtype, type)) throw std::invalid_argument("no packed form for " + dtype);
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

void check_num_bytes(const std::string& dtype, std::int64_t rows, std::int64_t cols, std::size_t have, std::size_t expected) {
    if (have == expected) return;
    throw std::invalid_argument(std::to_string(have) + " bytes, but " + std::to_string(rows) + " x " + std::to_string(cols) + " " +
                                dtype + " take " + std::to_string(expected));
}

// pack(first, last) on every member for its part of `num_blocks`; what it returns says whether all was well.
template <class Pack>
void pack_with(ThreadPool& pool, std::int64_t num_blocks, const std::string& problem, Pack pack) {
    struct Job {
        Pack& pack;
        std::int64_t num_blocks;
        int threads;
        std::atomic<bool> ok{true};
    } job{pack, num_blocks, pool.size()};
    const nanobind::gil_scoped_release unlocked;
    pool.run(
        [](void* context, int thread) {
            Job& j = *static_cast<Job*>(context);
            if (!j.pack(j.num_blocks * thread / j.threads, j.num_blocks * (thread + 1) / j.threads)) j.ok.store(false);
        },
        &job);
    if (!job.ok.load()) throw std::invalid_argument(problem);
}

std::string shape_of(const Array2& array) { return "[" + std::to_string(array.shape(0)) + ", " + std::to_string(array.shape(1)) + "]"; }

void check_dtype(const char* what, const Array2& array, nanobind::dlpack::dtype expected, const std::string& dtype) {
    if (array.dtype() == expected) return;
    using Code = nanobind::dlpack::dtype_code;
    const bool real = expected.code == static_cast<std::uint8_t>(Code::Float), is_signed = expected.code == static_cast<std::uint8_t>(Code::Int);
    throw std::invalid_argument(std::string("the ") + what + " of " + dtype + " are " + (real ? "float" : is_signed ? "int" : "uint") + std::to_string(expected.bits));
}

void check_numbers(const char* what, const Array2& array, nanobind::dlpack::dtype expected, const std::string& dtype, std::int64_t rows, std::int64_t per_row) {
    check_dtype(what, array, expected, dtype);
    if (static_cast<std::int64_t>(array.shape(0)) == rows && static_cast<std::int64_t>(array.shape(1)) == per_row) return;
    throw std::invalid_argument(std::string("the ") + what + " have the shape " + shape_of(array) + ", not [" + std::to_string(rows) + ", " + std::to_string(per_row) + "]");
}

}  // namespace

PackedMatrix::PackedMatrix(const std::string& dtype, std::int64_t rows, std::int64_t cols, const Bytes& packed) : owner_(packed) {
    SourceType type;
    matrix_ = matrix_of(dtype, rows, cols, type);
    check_num_bytes(dtype, rows, cols, packed.size(), matrix_.num_bytes());
    if (reinterpret_cast<std::uintptr_t>(packed.data()) % 64 != 0) throw std::invalid_argument("packed bytes start at a multiple of 64");
    matrix_.data = packed.data();
}

PackedMatrix::PackedMatrix(const std::string& dtype, std::int64_t rows, std::int64_t cols, const Bytes& source, ThreadPool& pool) {
    SourceType type;
    matrix_ = matrix_of(dtype, rows, cols, type);
    if (type.block_bytes == 0) throw std::invalid_argument(dtype + " is packed from arrays");
    check_num_bytes(dtype, rows, cols, source.size(), static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols / type.block_columns) *
                                                          static_cast<std::size_t>(type.block_bytes));
    allocate();
    pack_with(pool, matrix_.num_blocks(), "holds numbers that are not finite (infinity or NaN)", [&](std::int64_t first, std::int64_t last) {
        return pack_blocks(matrix_, dtype, source.data(), first, last, data_.get());
    });
}

PackedMatrix::PackedMatrix(const std::string& dtype, const Array2& quants, const Array2& scales, const Array2* minima, ThreadPool& pool) {
    ArrayFormat format;
    if (!find_array_format(dtype, format)) throw std::invalid_argument("no packed form of arrays for " + dtype);
    SourceType type;
    const auto rows = static_cast<std::int64_t>(quants.shape(0)), cols = static_cast<std::int64_t>(quants.shape(1));
    matrix_ = matrix_of(dtype, rows, cols, type);
    check_dtype("quants", quants, format.minima ? nanobind::dtype<std::uint8_t>() : nanobind::dtype<std::int8_t>(), dtype);
    const nanobind::dlpack::dtype number = {static_cast<std::uint8_t>(nanobind::dlpack::dtype_code::Float), static_cast<std::uint8_t>(format.group == 0 ? 32 : 16), 1};
    const std::int64_t per_row = format.group == 0 ? 1 : (cols + format.group - 1) / format.group;
    if ((minima != nullptr) != format.minima) throw std::invalid_argument(dtype + (format.minima ? " has minima" : " has no minima"));
    check_numbers("scales", scales, number, dtype, rows, per_row);
    if (minima != nullptr) check_numbers("minima", *minima, number, dtype, rows, per_row);
    allocate();
    const auto bytes = [](const Array2& array) { return static_cast<const std::uint8_t*>(array.data()); };
    const QuantArrays arrays{bytes(quants), bytes(scales), minima == nullptr ? nullptr : bytes(*minima), per_row};
    const std::string problem = "holds scales that are not finite, or integers that do not fit in " + std::to_string(format.bits) + " bits";
    pack_with(pool, matrix_.num_blocks(), problem, [&](std::int64_t first, std::int64_t last) {
        return pack_arrays(matrix_, arrays, first, last, data_.get());
    });
}

void PackedMatrix::allocate() {
    data_ = aligned_zeros<std::uint8_t>(matrix_.num_bytes() + 64);  // kernels read whole vectors and prefetch ahead
    matrix_.data = data_.get();
}

std::size_t PackedMatrix::size_of(const std::string& dtype, std::int64_t rows, std::int64_t cols) {
    SourceType type;
    return matrix_of(dtype, rows, cols, type).num_bytes();
}

void PackedMatrix::unpack_row(std::int64_t row, const OutFloats& out) const {
    if (row < 0 || row >= matrix_.rows) throw std::out_of_range("row " + std::to_string(row) + " of " + std::to_string(matrix_.rows));
    if (out.size() < static_cast<std::size_t>((matrix_.cols + 31) / 32 * 32)) throw std::invalid_argument("out must hold the columns, rounded up to 32");
    slipstream::unpack_row(matrix_, row, out.data());
}

}  // namespace slipstream
