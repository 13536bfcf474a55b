#include "kernels/permute.h"

#include <cstring>

namespace slipstream {

void unpermute_rows(const std::uint8_t* src, std::uint8_t* dst, std::size_t num_rows, std::size_t row_bytes,
                    std::size_t num_heads) {
    const std::size_t head_rows = num_rows / num_heads;
    const std::size_t half = head_rows / 2;
    for (std::size_t head = 0; head < num_heads; ++head) {
        const std::uint8_t* head_src = src + head * head_rows * row_bytes;
        std::uint8_t* head_dst = dst + head * head_rows * row_bytes;
        for (std::size_t i = 0; i < half; ++i) {
            std::memcpy(head_dst + i * row_bytes, head_src + 2 * i * row_bytes, row_bytes);
            std::memcpy(head_dst + (half + i) * row_bytes, head_src + (2 * i + 1) * row_bytes, row_bytes);
        }
    }
}

}  // namespace slipstream
