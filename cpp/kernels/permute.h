#pragma once

#include <cstddef>
#include <cstdint>

namespace slipstream {

// Undo the row order in which GGUF files of the Llama family store the query and key projections.
// There, row 2i of a head holds channel i and row 2i+1 channel i + head_rows/2 (rotary pairs side by side); the models
// here rotate halves, so the even rows of each head go to its first half and the odd rows to its second.
// Rows are opaque bytes: any quantised block format works as long as a row is a whole number of blocks.
//   src, dst: [num_rows, row_bytes], not overlapping; num_rows a multiple of 2 * num_heads.
void unpermute_rows(const std::uint8_t* src, std::uint8_t* dst, std::size_t num_rows, std::size_t row_bytes,
                    std::size_t num_heads);

}  // namespace slipstream
