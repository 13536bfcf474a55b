# make run    answer a prompt (PROMPT="..."); installs what is missing first
# make test   the whole test suite              make fast       only the quick tests
# make lint   style, types, room order          make clean      remove build output and caches
# make peers   install llama.cpp and OpenVINO GenAI for benchmarks/peers.py
# make peers-server  build llama-server, from the same sources, for benchmarks/serving.py
# make sanitize  native tests on a build with AddressSanitizer, UndefinedBehaviorSanitizer; thread team with ThreadSanitizer
# make native-warnings  compile the C++ code with every compiler at hand, warnings being errors
#
# PYTHON=... names the Python of a new .venv, MODEL=... the model of `make run`, PYTEST_ARGS=... goes to pytest.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.PHONY: run test fast lint clean peers peers-server native-warnings sanitize

MODEL ?= smollm2
MAX_TOKENS ?= 128
PYTEST_ARGS ?=
PROMPT ?= Explain in two sentences why the sky is blue.
export PROMPT

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
CREATED := .venv/.created
READY := .venv/.ready
READY_DEV := .venv/.ready-dev
# The install is editable: only what is compiled, and what says what to install, makes it stale.
BUILT_FROM := pyproject.toml CMakeLists.txt $(shell find cpp -type f)

run: $(READY)
	@$(BIN)/slipstream pull $(MODEL) >/dev/null
	@$(BIN)/slipstream generate $(MODEL) --chat --prompt="$$PROMPT" --max-tokens $(MAX_TOKENS)

test: $(READY_DEV)
	$(BIN)/slipstream pull smollm2
	$(BIN)/slipstream pull gemma3-270m
	$(BIN)/python -m pytest $(PYTEST_ARGS)

fast: $(READY_DEV)
	$(BIN)/python -m pytest -m fast $(PYTEST_ARGS)

lint: $(READY_DEV)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# Other engines to compare with, in an environment of their own (builds for a quarter of an hour on two cores).
peers:
	test -x .venv-peers/bin/python || "$$(scripts/find_python.sh $(PYTHON))" -m venv .venv-peers
	CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAVA_BUILD=OFF" \
	  .venv-peers/bin/python -m pip install llama-cpp-python openvino-genai

# From the sources of the llama-cpp-python that `make peers` installs; without its web page, which would be downloaded.
peers-server: peers
	rm -rf build/llama-server && mkdir -p build/llama-server
	release="$$(.venv-peers/bin/python -c 'from importlib.metadata import version; print(version("llama-cpp-python"))')"; \
	.venv-peers/bin/python -m pip download --no-deps --no-binary llama-cpp-python --dest build/llama-server "llama-cpp-python==$$release"; \
	tar -xzf "build/llama-server/llama_cpp_python-$$release.tar.gz" -C build/llama-server --strip-components 1; \
	cmake -S build/llama-server/vendor/llama.cpp -B build/llama-server/out -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
	  -DLLAMA_BUILD_NUMBER=0 -DLLAMA_BUILD_COMMIT="llama-cpp-python-$$release" -DBUILD_SHARED_LIBS=OFF -DLLAMA_OPENSSL=OFF \
	  -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_USE_PREBUILT_UI=OFF
	cmake --build build/llama-server/out --target llama-server --parallel
	cp build/llama-server/out/bin/llama-server .venv-peers/bin/

sanitize: $(READY_DEV)
	scripts/native_sanitize.sh

native-warnings:
	scripts/native_warnings.sh

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests benchmarks -type d -name __pycache__ -prune -exec rm -rf {} +

$(CREATED):
	@python="$$(scripts/find_python.sh $(PYTHON))"; echo "Creating .venv with $$python"; "$$python" -m venv .venv
	@touch $@

$(READY): $(CREATED) $(BUILT_FROM)
	@scripts/check_compiler.sh
	@echo "Installing Slipstream into .venv (once; a few minutes on a fresh machine)"
	$(PIP) install --editable '.[torch]'
	@touch $@

$(READY_DEV): $(CREATED) $(BUILT_FROM)
	@scripts/check_compiler.sh
	@echo "Installing Slipstream and its development tools into .venv (once; a few minutes on a fresh machine)"
	$(PIP) install --editable '.[dev]'
	@touch $(READY) $@
