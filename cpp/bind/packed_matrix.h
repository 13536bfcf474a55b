#pragma once

#include <nanobind/ndarray.h>

#include <cstdint>
#include <string>

#include "kernels/cpu/matrix.h"
#include "runtime/aligned.h"
#include "runtime/thread_pool.h"

namespace slipstream {

using Bytes = nanobind::ndarray<const std::uint8_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using OutFloats = nanobind::ndarray<float, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

using Array2 = nanobind::ndarray<nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;

// A weight matrix in the kernels' layout, with the memory it lies in. Constructors throw std::invalid_argument.
class PackedMatrix {
  public:
    // Over bytes that were packed before and stay as they are, with at least 64 readable bytes behind them.
    PackedMatrix(const std::string& dtype, std::int64_t rows, std::int64_t cols, const Bytes& packed);

    // From rows as a file of GGUF type `dtype` has them.
    PackedMatrix(const std::string& dtype, std::int64_t rows, std::int64_t cols, const Bytes& source, ThreadPool& pool);

    // From integers of `dtype` (a name of kernels/cpu/pack.h) with their scales and, where there are, minima.
    PackedMatrix(const std::string& dtype, const Array2& quants, const Array2& scales, const Array2* minima, ThreadPool& pool);

    static std::size_t size_of(const std::string& dtype, std::int64_t rows, std::int64_t cols);

    const Matrix& view() const { return matrix_; }
    std::int64_t rows() const { return matrix_.rows; }
    std::int64_t cols() const { return matrix_.cols; }
    std::size_t num_bytes() const { return matrix_.num_bytes(); }
    bool dense() const { return matrix_.dense(); }
    void unpack_row(std::int64_t row, const OutFloats& out) const;

  private:
    void allocate();

    Aligned<std::uint8_t> data_;
    Bytes owner_;  // of bytes that are not data_
    Matrix matrix_;
};

}  // namespace slipstream
