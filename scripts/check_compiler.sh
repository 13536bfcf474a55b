#!/bin/sh
# Check that a C++17 compiler is there before pip fails in a page of output. (CMake, if missing, comes with the build.)
set -eu

compiler="${CXX:-c++}"
if ! command -v "$compiler" >/dev/null 2>&1 && [ -z "${CXX:-}" ]; then
    for name in g++ clang++; do
        if command -v "$name" >/dev/null 2>&1; then compiler="$name"; break; fi
    done
fi
if ! printf '#include <optional>\nint main() { return std::optional<int>(0).value(); }\n' |
    "$compiler" -std=c++17 -x c++ -fsyntax-only - >/dev/null 2>&1; then
    echo "error: '$compiler' is not a working C++17 compiler." >&2
    echo "Install one (on Debian: apt-get install g++), or name it: make CXX=/path/to/c++ ..." >&2
    exit 1
fi
