#pragma once

#include <cstddef>
#include <cstdint>

namespace slipstream {

// Always inlined: a copy kept by the linker might be one compiled for a wider instruction set.
#define SLIPSTREAM_EVERYWHERE inline __attribute__((always_inline))

// How a weight matrix [rows, cols] lies in memory. Blocks of 16 rows follow one another; within a block the columns come
// in groups of 32. Rows and columns are padded with zeros to whole blocks and groups.
//
// Quantised group, 8 steps j of 4 columns each, row r = 8 h + lane:
//   U4, U5, U6: 32 bytes per step; byte 4 lane + (k % 4) holds row `lane` in its low nibble and row 8 + lane in its high
//       nibble. U5 adds 32 bytes per h whose bit j is bit 4 of step j; U6 adds two times 32 bytes per h (steps 0-3, 4-7)
//       whose bits 2 (j % 4) and up are bits 4 and 5.
//   U2, U3: 32 bytes per two steps; byte 4 lane + (k % 4) holds, two bits each from the lowest: row `lane` and row 8 + lane of
//       the even step, then of the odd one. U3 adds 32 bytes per h whose bit j is bit 2 of step j.
//   I8: two times 32 bytes per step (h = 0, 1): byte 4 lane + (k % 4).
// After the quants: 16 scales (twice 16 for half groups of 16 columns), then for the asymmetric kinds 16 minima.
//   plain: fp16. nested (k-quants): one byte each (half groups with minima: scale and minimum in the two halves of a byte),
//   multiplied by 16 fp16 factors (and 16 negated fp16 factors of the minima) that stand before every eighth group.
//   spanning: nothing; 16 fp16 scales (and 16 fp16 minima) stand before every `span` groups. Per channel: 16 fp32 scales, once.
// value = scale * (q - 2^(bits-1)) (symmetric, I8 without the offset) or scale * q + minimum.
// Dense: 16 numbers per column.
enum class Format : int {
    F32, F16, BF16, U4, U4Min, U4MinNested, U5, U5Min, U5MinNested, U6HalfNested, I8,
    U2MinHalfNested, U3HalfNested, U4Span2, U4MinSpan2, U4Span4, U4MinSpan4, I8Channel
};

constexpr int kWholeSpan = 1 << 30;

struct Layout {
    int bits;          // of a quant; 0: dense
    bool minima;
    bool half_groups;  // a scale per 16 columns
    bool nested;
    int span = 1;      // groups that share a header
};

constexpr SLIPSTREAM_EVERYWHERE Layout layout_of(Format format) {
    switch (format) {
        case Format::U4: return {4, false, false, false};
        case Format::U4Min: return {4, true, false, false};
        case Format::U4MinNested: return {4, true, false, true, 8};
        case Format::U5: return {5, false, false, false};
        case Format::U5Min: return {5, true, false, false};
        case Format::U5MinNested: return {5, true, false, true, 8};
        case Format::U6HalfNested: return {6, false, true, true, 8};
        case Format::I8: return {8, false, false, false};
        case Format::U2MinHalfNested: return {2, true, true, true, 8};
        case Format::U3HalfNested: return {3, false, true, true, 8};
        case Format::U4Span2: return {4, false, false, false, 2};
        case Format::U4MinSpan2: return {4, true, false, false, 2};
        case Format::U4Span4: return {4, false, false, false, 4};
        case Format::U4MinSpan4: return {4, true, false, false, 4};
        case Format::I8Channel: return {8, false, false, false, kWholeSpan};
        default: return {0, false, false, false};
    }
}

constexpr SLIPSTREAM_EVERYWHERE int quant_bytes(Layout l) { return l.bits == 8 ? 512 : 256 + 64 * (l.bits - 4); }
constexpr SLIPSTREAM_EVERYWHERE int scale_bytes(Layout l) {
    if (l.nested) return 16 * (l.half_groups ? 2 : l.minima ? 2 : 1);
    return l.span == 1 ? 32 * (l.minima ? 2 : 1) : 0;
}
constexpr SLIPSTREAM_EVERYWHERE int group_bytes(Layout l) { return quant_bytes(l) + scale_bytes(l); }
constexpr SLIPSTREAM_EVERYWHERE int header_bytes(Layout l) {
    return l.span == 1 ? 0 : l.span == kWholeSpan ? 64 : l.minima ? 64 : 32;
}

constexpr SLIPSTREAM_EVERYWHERE int dense_bytes(Format format) { return format == Format::F32 ? 4 : 2; }

struct Matrix {
    Format format = Format::F32;
    std::int64_t rows = 0, cols = 0;
    const std::uint8_t* data = nullptr;  // 64-byte aligned

    SLIPSTREAM_EVERYWHERE bool dense() const { return layout_of(format).bits == 0; }
    SLIPSTREAM_EVERYWHERE std::int64_t num_blocks() const { return (rows + 15) / 16; }
    SLIPSTREAM_EVERYWHERE std::int64_t num_groups() const { return (cols + 31) / 32; }
    SLIPSTREAM_EVERYWHERE std::size_t block_bytes() const {
        if (dense()) return static_cast<std::size_t>(cols) * 16 * static_cast<std::size_t>(dense_bytes(format));
        const Layout l = layout_of(format);
        const auto groups = static_cast<std::size_t>(num_groups());
        return groups * static_cast<std::size_t>(group_bytes(l)) +
               (groups + static_cast<std::size_t>(l.span) - 1) / static_cast<std::size_t>(l.span) * static_cast<std::size_t>(header_bytes(l));
    }
    SLIPSTREAM_EVERYWHERE std::size_t num_bytes() const { return static_cast<std::size_t>(num_blocks()) * block_bytes(); }
    SLIPSTREAM_EVERYWHERE const std::uint8_t* block(std::int64_t b) const { return data + static_cast<std::size_t>(b) * block_bytes(); }
};

}  // namespace slipstream
