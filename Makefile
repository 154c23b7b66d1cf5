# A front for CMake (CMakePresets.json) and the scripts in tools/. `make help` lists the targets.
PREFIX ?= /usr/local
DESTDIR ?=
# Debian's own interpreter: the tests use Debian's Python packages.
PYTHON ?= /usr/bin/python3
export PYTHON

.PHONY: all build setup demo test check soak install bench lab lint format clean help

all: build

help:
	@echo 'make            install missing Debian packages, configure, build (release) into build/'
	@echo 'make demo       checkpoint, kill, roll back and migrate a Python program'
	@echo 'make test       all tests: source, unit, sanitizers, fuzzers, end to end, clusters, real programs, faults, a fresh root'
	@echo 'make check      the quick part: unit tests and source checks'
	@echo 'make soak       the long forms: hundreds of random faults, thousands of moves, make test in a fresh root (hours)'
	@echo 'make lab        a cluster of network namespaces, and a shell on its first host (LAB="--hosts 4")'
	@echo 'make bench      measure against native execution and peers (bench/README.md)'
	@echo 'make lint       clang-format, shellcheck, pyflakes, cppcheck, a clang build'
	@echo 'make install    PREFIX=$(PREFIX) DESTDIR=$(DESTDIR)'

setup:
	@tools/setup.sh build

build: setup
	@tools/build.sh release

demo: build
	@tools/setup.sh lab
	@tools/demo.sh

test:
	@tools/setup.sh build lab test fresh
	@tools/test.sh all

check:
	@tools/setup.sh build lab test
	@tools/test.sh quick

soak: build
	@tools/setup.sh lab test fresh
	@tools/fresh_root.sh --user test
	@$(PYTHON) -B -m pytest -p no:cacheprovider -q -ra --tb=short -m long --long tests

lab: build
	@tools/setup.sh lab
	@$(PYTHON) -B -m lab $(LAB)

bench: build
	@tools/setup.sh lab test bench
	@$(PYTHON) bench/run.py $(BENCH)

lint:
	@tools/setup.sh build lint
	@tools/lint.sh

format:
	@git ls-files '*.c' '*.h' | xargs clang-format -i

install: build
	@cmake -DCMAKE_INSTALL_PREFIX=$(PREFIX) build >/dev/null
	@DESTDIR=$(DESTDIR) cmake --install build

clean:
	rm -rf build build-*
