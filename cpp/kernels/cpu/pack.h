#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/cpu/matrix.h"

namespace slipstream {

// A type that packs without loss: of tensors in GGUF files, or of arrays.
struct SourceType {
    Format format;
    int block_columns;  // columns per block of the file
    int block_bytes;    // 0: packed from arrays
};

// Integers with scales: value = scale * quant (+ minimum).
struct ArrayFormat {
    Format format;
    int group;  // columns that share a scale; 0: all
    int bits;
    bool minima;  // and the quants are unsigned
};

// Row-major [rows, cols] and [rows, scales_per_row]; scales and minima are fp16, those of channels fp32.
struct QuantArrays {
    const std::uint8_t* quants;  // int8, or uint8 where there are minima
    const std::uint8_t* scales;
    const std::uint8_t* minima;
    std::int64_t scales_per_row;
};

// False when `name` has no lossless packed form.
bool find_source_type(const std::string& name, SourceType& out);

bool find_array_format(const std::string& name, ArrayFormat& out);

// As `pack_blocks`. Returns false if a scale or minimum is not finite, or a quant does not fit its bits.
bool pack_arrays(const Matrix& matrix, const QuantArrays& arrays, std::int64_t first, std::int64_t last, std::uint8_t* out);

// Packs rows [16 b, 16 b + 16) for first <= b < last of a matrix whose rows lie in `source` as the file has them, into
// `out` (the start of the whole packed matrix; `matrix.data` is not read). Returns false if a scale is not finite.
bool pack_blocks(const Matrix& matrix, const std::string& type, const std::uint8_t* source, std::int64_t first,
                 std::int64_t last, std::uint8_t* out);

// The float32 values of one row, bit for bit what dequantising the file's blocks gives.
void unpack_row(const Matrix& matrix, std::int64_t row, float* out);

}  // namespace slipstream
