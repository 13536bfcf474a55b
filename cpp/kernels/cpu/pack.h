#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/cpu/matrix.h"

namespace slipstream {

// A tensor type of GGUF files that packs without loss.
struct SourceType {
    Format format;
    int block_columns;  // columns per block of the file
    int block_bytes;
};

// False when `name` has no lossless packed form.
bool find_source_type(const std::string& name, SourceType& out);

// Packs rows [16 b, 16 b + 16) for first <= b < last of a matrix whose rows lie in `source` as the file has them, into
// `out` (the start of the whole packed matrix; `matrix.data` is not read). Returns false if a scale is not finite.
bool pack_blocks(const Matrix& matrix, const std::string& type, const std::uint8_t* source, std::int64_t first,
                 std::int64_t last, std::uint8_t* out);

// The float32 values of one row, bit for bit what dequantising the file's blocks gives.
void unpack_row(const Matrix& matrix, std::int64_t row, float* out);

}  // namespace slipstream
