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
    check_num_bytes(dtype, rows, cols, source.size(), static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols / type.block_columns) *
                                                          static_cast<std::size_t>(type.block_bytes));
    // Kernels read whole vectors and prefetch ahead.
    data_ = aligned_zeros<std::uint8_t>(matrix_.num_bytes() + 64);
    matrix_.data = data_.get();
    struct Job {
        const Matrix& matrix;
        const std::string& dtype;
        const std::uint8_t* source;
        std::uint8_t* out;
        int threads;
        std::atomic<bool> finite{true};
    } job{matrix_, dtype, source.data(), data_.get(), pool.size()};
    const nanobind::gil_scoped_release unlocked;
    pool.run(
        [](void* context, int thread) {
            Job& j = *static_cast<Job*>(context);
            const std::int64_t n = j.matrix.num_blocks();
            if (!pack_blocks(j.matrix, j.dtype, j.source, n * thread / j.threads, n * (thread + 1) / j.threads, j.out)) {
                j.finite.store(false);
            }
        },
        &job);
    if (!job.finite.load()) throw std::invalid_argument("holds numbers that are not finite (infinity or NaN)");
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
