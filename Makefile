# SPDX-License-Identifier: Apache-2.0
# Every target starts from a bare clone: set-up and build are steps of it, done once and then skipped.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
PYTHON := $(VENV)/bin/python
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
JOBS ?= $(shell nproc)
CXX_FILES = $(shell find core custom include tools tests bindings bench \( -name '*.cpp' -o -name '*.h' -o -name '*.hpp' \) -type f | sort)
say = @echo "==> $(1)"

.PHONY: help setup build build-asan demo test check test-cpp test-asan test-tsan test-python \
  conformance fuzz bless bench bench-kernels wheel format clean

help:
	@echo "make setup    Debian packages and $(VENV)"
	@echo "make demo     Fashion-MNIST on a virtual IPU, beside eager PyTorch"
	@echo "make test     format, types, layers, C++ tests (plain and sanitized), Python tests"
	@echo "make conformance   every operator sample of PyTorch, and docs/op-coverage.md"
	@echo "make fuzz     100,000 damaged programs through the sanitized compiler; SEED=n, COUNT=n"
	@echo "make bless    rewrite the expected texts of core/*/*.tir from what the compiler does now"
	@echo "make bench    speed and memory against eager and torch.compile"
	@echo "make bench-kernels   each op alone against eager; FILTER=regex picks some"
	@echo "make format   rewrite sources in the project's format"
	@echo "make wheel    dist/tessera_poptorch-*.whl"
	@echo "make clean    remove build products (keeps $(VENV))"

setup: $(VENV)/.ready

$(VENV)/.ready: requirements-dev.txt tools/dev/install_system.sh
	@tools/dev/install_system.sh
	@test -x $(PYTHON) || { echo "==> Python: new environment in $(VENV)"; python3 -m venv $(VENV); }
	@echo "==> Python: installing $$(grep -v '^#' requirements-dev.txt | tr '\n' ' ')"
	@# torch first and alone, so that no other requirement can choose its version
	@$(PYTHON) -m pip install -qq --disable-pip-version-check torch==2.13.0
	@$(PYTHON) -m pip install -qq --disable-pip-version-check -r requirements-dev.txt
	@# the source tree itself is the installed package; the build puts poptorch/_core into it
	@echo "$(CURDIR)/python" > "$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tessera.pth"
	@$(PYTHON) -m pip list --disable-pip-version-check --format=freeze | sed 's/^/    /'
	@touch $@

# Ninja knows what is out of date; a second run compiles nothing.
build: setup
	@test -f build/release/build.ninja || { echo "==> Configuring build/release"; \
	  cmake --preset release -DPython_EXECUTABLE=$(CURDIR)/$(PYTHON) > /dev/null; }
	@echo "==> Building build/release ($(JOBS) jobs)"
	@cmake --build build/release -j $(JOBS)

build-asan: setup
	@test -f build/asan/build.ninja || { echo "==> Configuring build/asan"; cmake --preset asan > /dev/null; }
	@echo "==> Building build/asan ($(JOBS) jobs)"
	@cmake --build build/asan -j $(JOBS)

demo: build
	$(call say,Demo: one epoch on a virtual IPU beside eager PyTorch)
	@$(PYTHON) examples/fashion_mnist.py --compare --epochs 1
	$(call say,Demo: five epochs on a virtual IPU)
	@$(PYTHON) examples/fashion_mnist.py --epochs 5

test: check test-cpp test-asan test-python
	$(call say,All checks passed)

check: setup
	$(call say,Format: clang-format)
	@clang-format --dry-run -Werror $(CXX_FILES)
	$(call say,Format and lint: ruff)
	@ruff format --check .
	@ruff check .
	$(call say,Types: mypy)
	@$(PYTHON) tools/dev/check_types.py
	$(call say,Layers)
	@$(PYTHON) tools/dev/check_layers.py

test-cpp: build
	$(call say,C++ tests)
	@$(PYTHON) tools/dev/check_isa.py build/release
	@ctest --preset release -j $(JOBS)

test-asan: build-asan
	$(call say,C++ tests under address and undefined-behaviour sanitizers)
	@ctest --preset asan -j $(JOBS)

test-tsan: setup
	$(call say,C++ tests under the thread sanitizer)
	@cmake --preset tsan > /dev/null
	@cmake --build build/tsan -j $(JOBS)
	@ctest --preset tsan

test-python: build
	$(call say,Python tests)
	@$(PYTHON) -m pytest -q -n $(JOBS) --dist loadgroup tests

conformance: build
	$(call say,Every sample of PyTorch's operator database in every type; about an hour)
	@$(PYTHON) tests/ops/conformance.py --full --write docs/op-coverage.md

# A process per core, each with a seed of its own.
SEED ?= 1
COUNT ?= 100000
fuzz: build-asan
	$(call say,$(COUNT) damaged programs)
	@mkdir -p build/fuzz
	@seq 0 $$(($(JOBS) - 1)) | xargs -P $(JOBS) -I{} sh -c 'build/asan/tests/tessera_fuzz --seed=$$(($(SEED) + {})) \
	  --count=$$((($(COUNT) + $(JOBS) - 1) / $(JOBS))) --out=build/fuzz core tests/fuzz/programs'
	@build/asan/tests/tessera_fuzz --executables --seed=$(SEED) --count=$$(($(COUNT) / 50)) core tests/fuzz/programs

bless: build
	$(call say,Expected texts of the text cases)
	@build/release/tools/tessera-opt --bless core/passes core/plan

bench: build
	$(call say,Benchmarks)
	@$(PYTHON) bench/run.py
	$(call say,Data loader)
	@$(PYTHON) -m bench.loader
	$(call say,CTC beam search against the search of the textbook)
	@mkdir -p build/bench
	@g++ -std=c++20 -O3 -march=x86-64-v3 -fopenmp -Icore bench/kernels/beam_bench.cpp core/kernels/beam.cpp -o build/bench/beam
	@build/bench/beam 200 16 100 100 1

bench-kernels: build
	$(call say,Kernels against eager)
	@$(PYTHON) -m bench.kernels --filter '$(FILTER)'

wheel: setup
	$(call say,Wheel)
	@$(PYTHON) -m pip wheel --disable-pip-version-check --no-build-isolation --no-deps -w dist .
	@$(PYTHON) tools/dev/check_wheel.py dist/*.whl

format: setup
	@clang-format -i $(CXX_FILES)
	@ruff format .
	@ruff check --fix .

clean:
	rm -rf build dist python/poptorch/_core*.so python/poptorch/lib
