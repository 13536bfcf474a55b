#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

namespace slipstream {

struct FreeAligned {
    void operator()(void* p) const { std::free(p); }
};

template <class T>
using Aligned = std::unique_ptr<T[], FreeAligned>;

// `count` zeros at a 64-byte boundary. Throws std::bad_alloc.
template <class T>
Aligned<T> aligned_zeros(std::size_t count) {
    const std::size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
    void* p = std::aligned_alloc(64, bytes == 0 ? 64 : bytes);
    if (p == nullptr) throw std::bad_alloc();
    std::memset(p, 0, bytes);
    return Aligned<T>(static_cast<T*>(p));
}

}  // namespace slipstream
