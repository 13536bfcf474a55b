#!/usr/bin/env bash
# Run the native tests on a build with AddressSanitizer and UndefinedBehaviorSanitizer, and the thread team's on one with
# ThreadSanitizer. Everything goes to build/sanitize; the installed module is not touched.
set -euo pipefail
cd "$(dirname "$0")/.."

python="$PWD/.venv/bin/python"
site="$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
out="$PWD/build/sanitize"
mkdir -p "$out"

# The module lands in a copy of the sources: the editable install would find the ordinary module first, and a checkout may change meanwhile.
"$python" -m venv --without-pip "$out/venv"
tree="$out/tree"
rm -rf "$tree"
mkdir -p "$tree"
cp -r src/slipstream tests pyproject.toml "$tree"
find "$tree" -name '_native*.so' -delete
printf '%s\n%s\n' "$tree" "$site" >"$("$out/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/sanitize.pth"

echo "Building with AddressSanitizer and UndefinedBehaviorSanitizer"
nanobind="$("$python" -m nanobind --cmake_dir)"
cmake -S . -B "$out/address" -DCMAKE_BUILD_TYPE=None -DSLIPSTREAM_SANITIZE=address,undefined \
    -DPython_EXECUTABLE="$python" -Dnanobind_DIR="$nanobind" >"$out/cmake.log"
cmake --build "$out/address" --parallel "$(nproc)" --target _native
cp "$out"/address/_native*.so "$tree/slipstream/"

# Freed memory stays with AddressSanitizer, so that its reuse is seen: the test that it goes back to the system is left out.
# Python itself is not instrumented: the runtime has to be there first, and what the interpreter keeps is no leak of ours.
libraries="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so) $(g++ -print-file-name=libstdc++.so)"
cd "$tree"
LD_PRELOAD="$libraries" ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc OMP_NUM_THREADS=1 \
    "$out/venv/bin/python" -m pytest -p no:cacheprovider -m "not model" tests/native tests/test_native.py tests/test_native_strings.py \
    --deselect tests/test_native_strings.py::test_free_memory_goes_back_to_the_system "$@"

cd - >/dev/null
echo "Building the thread team with ThreadSanitizer"
g++ -std=c++20 -O1 -g -fsanitize=thread -Icpp cpp/runtime/thread_pool.cpp cpp/tests/thread_pool_stress.cpp -o "$out/thread_pool_stress" -pthread
"$out/thread_pool_stress"
