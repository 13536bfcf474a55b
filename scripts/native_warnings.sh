#!/bin/sh
# Compile cpp/ with every C++ compiler found here (and the aarch64 cross compiler), warnings being errors.
set -eu
cd "$(dirname "$0")/.."

ran=0
for compiler in g++ clang++ clang++-14 aarch64-linux-gnu-g++; do
    command -v "$compiler" >/dev/null 2>&1 || continue
    for standard in c++17 c++20; do
        for file in cpp/hw/*.cpp cpp/kernels/*.cpp cpp/spec/*.cpp; do
            "$compiler" "-std=$standard" -O3 -Wall -Wextra -Wpedantic -Werror -Icpp -c "$file" -o /dev/null
        done
    done
    echo "$compiler: no warnings"
    ran=1
done
if [ "$ran" = 0 ]; then
    echo "error: no C++ compiler found." >&2
    exit 1
fi
