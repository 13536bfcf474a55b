#include "kernels/cpu/pack.h"

#include <cmath>
#include <cstring>

#include "kernels/cpu/half.h"

namespace slipstream {
namespace {

using Byte = std::uint8_t;

// One group of 32 columns of one row.
struct Group {
    Byte quants[32];
    std::uint16_t scale = 0, minimum = 0;   // fp16, plain and spanning kinds
    float channel = 0.0f;                   // scale of a channel
    Byte scales[2] = {0, 0}, minima[2] = {0, 0};  // nested kinds
    std::uint16_t super = 0, super_min = 0; // fp16, nested kinds
};

std::uint16_t half_at(const Byte* p) {
    std::uint16_t h;
    std::memcpy(&h, p, 2);
    return h;
}

void nibbles(const Byte* packed, Byte* out) {
    for (int i = 0; i < 16; ++i) {
        out[i] = packed[i] & 15;
        out[i + 16] = packed[i] >> 4;
    }
}

void fifth_bits(const Byte* packed, Byte* out) {
    for (int i = 0; i < 32; ++i) out[i] = static_cast<Byte>(out[i] | (((packed[i / 8] >> (i % 8)) & 1) << 4));
}

void read_q4_0(const Byte* row, int g, Group& out) {
    const Byte* block = row + g * 18;
    out.scale = half_at(block);
    nibbles(block + 2, out.quants);
}

void read_q4_1(const Byte* row, int g, Group& out) {
    const Byte* block = row + g * 20;
    out.scale = half_at(block);
    out.minimum = half_at(block + 2);
    nibbles(block + 4, out.quants);
}

void read_q5_0(const Byte* row, int g, Group& out) {
    const Byte* block = row + g * 22;
    out.scale = half_at(block);
    nibbles(block + 6, out.quants);
    fifth_bits(block + 2, out.quants);
}

void read_q5_1(const Byte* row, int g, Group& out) {
    const Byte* block = row + g * 24;
    out.scale = half_at(block);
    out.minimum = half_at(block + 2);
    nibbles(block + 8, out.quants);
    fifth_bits(block + 4, out.quants);
}

void read_q8_0(const Byte* row, int g, Group& out) {
    const Byte* block = row + g * 34;
    out.scale = half_at(block);
    std::memcpy(out.quants, block + 2, 32);
}

void read_k_scales(const Byte* block, int g, Group& out) {
    const Byte* s = block + 4;
    out.super = half_at(block);
    out.super_min = static_cast<std::uint16_t>(half_at(block + 2) ^ 0x8000U);
    if (g < 4) {
        out.scales[0] = s[g] & 63;
        out.minima[0] = s[g + 4] & 63;
    } else {
        out.scales[0] = static_cast<Byte>((s[g + 4] & 15) | ((s[g - 4] >> 6) << 4));
        out.minima[0] = static_cast<Byte>((s[g + 4] >> 4) | ((s[g] >> 6) << 4));
    }
}

void read_q4_k(const Byte* row, int group, Group& out) {
    const Byte* block = row + group / 8 * 144;
    const int g = group % 8;
    read_k_scales(block, g, out);
    const Byte* quants = block + 16 + g / 2 * 32;
    for (int i = 0; i < 32; ++i) out.quants[i] = g % 2 == 0 ? quants[i] & 15 : quants[i] >> 4;
}

void read_q5_k(const Byte* row, int group, Group& out) {
    const Byte* block = row + group / 8 * 176;
    const int g = group % 8;
    read_k_scales(block, g, out);
    const Byte* quants = block + 48 + g / 2 * 32;
    for (int i = 0; i < 32; ++i) {
        const int low = g % 2 == 0 ? quants[i] & 15 : quants[i] >> 4;
        out.quants[i] = static_cast<Byte>(low | (((block[16 + i] >> g) & 1) << 4));
    }
}

void read_q6_k(const Byte* row, int group, Group& out) {
    const Byte* block = row + group / 8 * 210;
    const int g = group % 8, part = g / 4, k = g % 4;
    const Byte* low = block + part * 64 + k % 2 * 32;
    const Byte* high = block + 128 + part * 32;
    for (int i = 0; i < 32; ++i) {
        const int nibble = k < 2 ? low[i] & 15 : low[i] >> 4;
        out.quants[i] = static_cast<Byte>(nibble | (((high[i] >> (2 * k)) & 3) << 4));
    }
    out.super = half_at(block + 208);
    out.scales[0] = block[192 + 2 * g];
    out.scales[1] = block[192 + 2 * g + 1];
}

void read_q2_k(const Byte* row, int group, Group& out) {
    const Byte* block = row + group / 8 * 84;
    const int g = group % 8;
    const Byte* quants = block + 16 + g / 4 * 32;
    for (int i = 0; i < 32; ++i) out.quants[i] = static_cast<Byte>(quants[i] >> (2 * (g % 4)) & 3);
    for (int half = 0; half < 2; ++half) {
        out.scales[half] = block[2 * g + half] & 15;
        out.minima[half] = static_cast<Byte>(block[2 * g + half] >> 4);
    }
    out.super = half_at(block + 80);
    out.super_min = static_cast<std::uint16_t>(half_at(block + 82) ^ 0x8000U);
}

void read_q3_k(const Byte* row, int group, Group& out) {
    const Byte* block = row + group / 8 * 110;
    const int g = group % 8;
    const Byte* quants = block + 32 + g / 4 * 32;
    for (int i = 0; i < 32; ++i) {
        const int low = quants[i] >> (2 * (g % 4)) & 3;
        out.quants[i] = static_cast<Byte>(low | (((block[i] >> g) & 1) << 2));
    }
    for (int half = 0; half < 2; ++half) {
        const int i = 2 * g + half;
        const int low = block[96 + i % 8] >> (4 * (i / 8)) & 15, high = block[104 + i % 4] >> (2 * (i / 4)) & 3;
        out.scales[half] = static_cast<Byte>((low | (high << 4)) - 32);
    }
    out.super = half_at(block + 108);
}

struct Reader {
    const char* name;
    SourceType type;
    void (*read)(const Byte* row, int group, Group& out);
};

constexpr Reader kReaders[] = {
    {"Q4_0", {Format::U4, 32, 18}, read_q4_0},
    {"Q4_1", {Format::U4Min, 32, 20}, read_q4_1},
    {"Q5_0", {Format::U5, 32, 22}, read_q5_0},
    {"Q5_1", {Format::U5Min, 32, 24}, read_q5_1},
    {"Q8_0", {Format::I8, 32, 34}, read_q8_0},
    {"Q2_K", {Format::U2MinHalfNested, 256, 84}, read_q2_k},
    {"Q3_K", {Format::U3HalfNested, 256, 110}, read_q3_k},
    {"Q4_K", {Format::U4MinNested, 256, 144}, read_q4_k},
    {"Q5_K", {Format::U5MinNested, 256, 176}, read_q5_k},
    {"Q6_K", {Format::U6HalfNested, 256, 210}, read_q6_k},
    {"F32", {Format::F32, 1, 4}, nullptr},
    {"F16", {Format::F16, 1, 2}, nullptr},
    {"BF16", {Format::BF16, 1, 2}, nullptr},
};

// What is packed from arrays.
struct ArrayType {
    const char* name;
    Format format;
    int group;  // columns that share a scale; 0: all
};

constexpr ArrayType kArrayTypes[] = {
    {"INT4_G32", Format::U4, 32},        {"UINT4_G32", Format::U4Min, 32},    {"INT4_G64", Format::U4Span2, 64},
    {"UINT4_G64", Format::U4MinSpan2, 64}, {"INT4_G128", Format::U4Span4, 128}, {"UINT4_G128", Format::U4MinSpan4, 128},
    {"INT8_G32", Format::I8, 32},        {"INT8_CHANNEL", Format::I8Channel, 0},
};

const Reader* find_reader(const std::string& name) {
    for (const Reader& reader : kReaders) {
        if (name == reader.name) return &reader;
    }
    return nullptr;
}

// Where group g of a block begins; the header that it shares with others stands before the first of them.
std::size_t group_offset(Layout l, std::int64_t g) {
    return static_cast<std::size_t>(g) * static_cast<std::size_t>(group_bytes(l)) +
           static_cast<std::size_t>(g / l.span + 1) * static_cast<std::size_t>(header_bytes(l));
}

std::size_t header_offset(Layout l, std::int64_t g) {
    return group_offset(l, g / l.span * l.span) - static_cast<std::size_t>(header_bytes(l));
}

void put_half(Byte* p, int index, std::uint16_t value) { std::memcpy(p + 2 * index, &value, 2); }

void put_quants(Layout l, int r, const Byte* quants, Byte* out) {
    const int h = r / 8, lane = r % 8;
    for (int k = 0; k < 32; ++k) {
        const int j = k / 4, at = 4 * lane + k % 4, q = quants[k];
        if (l.bits == 8) {
            out[j * 64 + h * 32 + at] = static_cast<Byte>(q);
            continue;
        }
        if (l.bits < 4) {
            Byte& four = out[j / 2 * 32 + at];
            four = static_cast<Byte>(four | ((q & 3) << (2 * (2 * (j % 2) + h))));
            if (l.bits == 2) continue;
            Byte& plane = out[128 + h * 32 + at];
            plane = static_cast<Byte>(plane | ((q >> 2) << j));
            continue;
        }
        Byte& pair = out[j * 32 + at];
        pair = static_cast<Byte>(pair | ((q & 15) << (4 * h)));
        if (l.bits == 5) {
            Byte& plane = out[256 + h * 32 + at];
            plane = static_cast<Byte>(plane | ((q >> 4) << j));
        } else if (l.bits == 6) {
            Byte& plane = out[256 + h * 64 + j / 4 * 32 + at];
            plane = static_cast<Byte>(plane | ((q >> 4) << (2 * (j % 4))));
        }
    }
}

int get_quant(Layout l, const Byte* group, int r, int k) {
    const int h = r / 8, j = k / 4, at = 4 * (r % 8) + k % 4;
    if (l.bits == 8) return static_cast<std::int8_t>(group[j * 64 + h * 32 + at]);
    if (l.bits < 4) {
        const int low = group[j / 2 * 32 + at] >> (2 * (2 * (j % 2) + h)) & 3;
        return l.bits == 2 ? low : low | ((group[128 + h * 32 + at] >> j) & 1) << 2;
    }
    int q = (group[j * 32 + at] >> (4 * h)) & 15;
    if (l.bits == 5) q |= ((group[256 + h * 32 + at] >> j) & 1) << 4;
    if (l.bits == 6) q |= ((group[256 + h * 64 + j / 4 * 32 + at] >> (2 * (j % 4))) & 3) << 4;
    return q;
}

bool finite(std::uint16_t half) { return (half & 0x7c00U) != 0x7c00U; }

bool put_group(Layout l, int r, std::int64_t g, const Group& group, Byte* block) {
    Byte* at = block + group_offset(l, g);
    put_quants(l, r, group.quants, at);
    Byte* header = block + header_offset(l, g);
    if (l.span == kWholeSpan) {
        std::memcpy(header + 4 * r, &group.channel, 4);
        return std::isfinite(group.channel);
    }
    Byte* scales = l.nested || l.span == 1 ? at + quant_bytes(l) : header;
    if (!l.nested) {
        put_half(scales, r, group.scale);
        if (l.minima) put_half(scales + 32, r, group.minimum);
        return finite(group.scale) && finite(group.minimum);
    }
    if (l.half_groups && l.minima) {
        for (int half = 0; half < 2; ++half) scales[16 * half + r] = static_cast<Byte>(group.scales[half] | (group.minima[half] << 4));
    } else {
        scales[r] = group.scales[0];
        if (l.half_groups) scales[16 + r] = group.scales[1];
        if (l.minima) scales[16 + r] = group.minima[0];
    }
    put_half(header, r, group.super);
    if (l.minima) put_half(header + 32, r, group.super_min);
    return finite(group.super) && finite(group.super_min);
}

bool pack_dense(const Matrix& m, const Byte* source, std::int64_t first, std::int64_t last, Byte* out) {
    const auto size = static_cast<std::size_t>(dense_bytes(m.format));
    bool ok = true;
    for (std::int64_t row = first * 16; row < m.rows && row < last * 16; ++row) {
        Byte* block = out + static_cast<std::size_t>(row / 16) * m.block_bytes();
        for (std::int64_t k = 0; k < m.cols; ++k) {
            const Byte* from = source + static_cast<std::size_t>(row * m.cols + k) * size;
            std::memcpy(block + static_cast<std::size_t>(k * 16 + row % 16) * size, from, size);
            const unsigned top = from[size - 1] & 0x7fU, next = from[size - 2];
            const bool special = m.format == Format::F16 ? (top & 0x7cU) == 0x7cU : top == 0x7fU && next >= 0x80U;
            ok = ok && !special;
        }
    }
    return ok;
}

}  // namespace

bool find_source_type(const std::string& name, SourceType& out) {
    const Reader* reader = find_reader(name);
    if (reader != nullptr) out = reader->type;
    ArrayFormat array;
    if (reader == nullptr && find_array_format(name, array)) {
        out = {array.format, 1, 0};
        return true;
    }
    return reader != nullptr;
}

bool find_array_format(const std::string& name, ArrayFormat& out) {
    for (const ArrayType& type : kArrayTypes) {
        if (name != type.name) continue;
        const Layout l = layout_of(type.format);
        out = {type.format, type.group, l.bits, l.minima};
        return true;
    }
    return false;
}

bool pack_blocks(const Matrix& m, const std::string& type, const Byte* source, std::int64_t first, std::int64_t last,
                 Byte* out) {
    const Reader* reader = find_reader(type);
    std::memset(out + static_cast<std::size_t>(first) * m.block_bytes(), 0,
                static_cast<std::size_t>(last - first) * m.block_bytes());
    if (reader->read == nullptr) return pack_dense(m, source, first, last, out);
    const Layout l = layout_of(m.format);
    const std::size_t row_bytes = static_cast<std::size_t>(m.cols / reader->type.block_columns) *
                                  static_cast<std::size_t>(reader->type.block_bytes);
    bool ok = true;
    for (std::int64_t row = first * 16; row < m.rows && row < last * 16; ++row) {
        Byte* block = out + static_cast<std::size_t>(row / 16) * m.block_bytes();
        const Byte* from = source + static_cast<std::size_t>(row) * row_bytes;
        for (int g = 0; g < m.num_groups(); ++g) {
            Group group;
            reader->read(from, g, group);
            ok = put_group(l, static_cast<int>(row % 16), g, group, block) && ok;
        }
    }
    return ok;
}

bool pack_arrays(const Matrix& m, const QuantArrays& arrays, std::int64_t first, std::int64_t last, Byte* out) {
    std::memset(out + static_cast<std::size_t>(first) * m.block_bytes(), 0, static_cast<std::size_t>(last - first) * m.block_bytes());
    const Layout l = layout_of(m.format);
    const int offset = l.bits == 8 || l.minima ? 0 : 1 << (l.bits - 1);
    bool ok = true;
    for (std::int64_t row = first * 16; row < m.rows && row < last * 16; ++row) {
        Byte* block = out + static_cast<std::size_t>(row / 16) * m.block_bytes();
        const Byte* quants = arrays.quants + row * m.cols;
        for (std::int64_t g = 0; g < m.num_groups(); ++g) {
            Group group;
            for (int k = 0; k < 32; ++k) {
                const Byte q = 32 * g + k < m.cols ? quants[32 * g + k] : Byte{0};
                group.quants[k] = static_cast<Byte>(q + offset);
                ok = ok && (l.bits == 8 || group.quants[k] < 1 << l.bits);
            }
            const std::int64_t i = row * arrays.scales_per_row + g / (l.span == kWholeSpan ? m.num_groups() : l.span);
            if (l.span == kWholeSpan) {
                std::memcpy(&group.channel, arrays.scales + 4 * i, 4);
            } else {
                group.scale = half_at(arrays.scales + 2 * i);
                if (l.minima) group.minimum = half_at(arrays.minima + 2 * i);
            }
            ok = put_group(l, static_cast<int>(row % 16), g, group, block) && ok;
        }
    }
    return ok;
}

void unpack_row(const Matrix& m, std::int64_t row, float* out) {
    const Byte* block = m.block(row / 16);
    const int r = static_cast<int>(row % 16);
    if (m.dense()) {
        for (std::int64_t k = 0; k < m.cols; ++k) {
            const auto i = static_cast<std::size_t>(k * 16 + r);
            if (m.format == Format::F32) std::memcpy(out + k, block + 4 * i, 4);
            else out[k] = m.format == Format::F16 ? half_to_float(half_at(block + 2 * i)) : bfloat_to_float(half_at(block + 2 * i));
        }
        return;
    }
    const Layout l = layout_of(m.format);
    const int offset = l.minima || l.bits == 8 ? 0 : 1 << (l.bits - 1);
    for (std::int64_t g = 0; g < m.num_groups(); ++g) {
        const Byte* group = block + group_offset(l, g);
        const Byte* header = block + header_offset(l, g);
        const Byte* scales = l.nested || l.span == 1 ? group + quant_bytes(l) : header;
        for (int half = 0; half < 2; ++half) {
            float scale, minimum = 0.0f;
            if (l.span == kWholeSpan) {
                std::memcpy(&scale, header + 4 * r, 4);
            } else if (!l.nested) {
                scale = half_to_float(half_at(scales + 2 * r));
                if (l.minima) minimum = half_to_float(half_at(scales + 32 + 2 * r));
            } else {
                const Byte s = scales[(l.half_groups ? 16 * half : 0) + r];
                const bool both = l.half_groups && l.minima;
                const float factor = both ? static_cast<float>(s & 15) : l.half_groups ? static_cast<float>(static_cast<std::int8_t>(s)) : static_cast<float>(s);
                scale = half_to_float(half_at(header + 2 * r)) * factor;
                if (l.minima) minimum = half_to_float(half_at(header + 32 + 2 * r)) * static_cast<float>(both ? s >> 4 : scales[16 + r]);
            }
            for (int k = 16 * half; k < 16 * half + 16; ++k) {
                const float value = scale * static_cast<float>(get_quant(l, group, r, k) - offset);
                out[g * 32 + k] = l.minima ? value + minimum : value;
            }
        }
    }
    for (std::int64_t k = m.cols; k < m.num_groups() * 32; ++k) out[k] = 0.0f;
}

}  // namespace slipstream
