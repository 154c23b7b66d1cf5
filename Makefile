# A thin front: CMake builds (CMakePresets.json), tools/ has the scripts. `make help` lists the targets.
PREFIX ?= /usr/local
DESTDIR ?=
# Debian's own: the tests' modules are Debian packages.
PYTHON ?= /usr/bin/python3
export PYTHON

.PHONY: all build setup demo test check soak install bench lab lint format clean help

all: build

help:
	@echo 'make            install missing Debian packages, configure, build (release) into build/'
	@echo 'make demo       a Python program is checkpointed, killed, rolled back, and goes on'
	@echo 'make test       everything: unit, checks, sanitizers, fuzzers, end to end, real programs, faults'
	@echo 'make check      the quick part of it: unit tests and source checks'
	@echo 'make soak       the long form of the tests that have one: hundreds of random faults, thousands of moves (hours)'
	@echo 'make lab        hosts as network namespaces, a cluster on them, and a shell (LAB="--hosts 4")'
	@echo 'make bench      what it costs, beside native and its peers (bench/README.md)'
	@echo 'make lint       clang-format, shellcheck, pyflakes, cppcheck, a clang build'
	@echo 'make install    PREFIX=$(PREFIX) DESTDIR=$(DESTDIR)'

setup:
	@tools/setup.sh build

build: setup
	@tools/build.sh release

demo: build
	@tools/demo.sh

test:
	@tools/setup.sh build test
	@tools/test.sh all

check:
	@tools/setup.sh build test
	@tools/test.sh quick

soak: build
	@tools/setup.sh test
	@$(PYTHON) -B -m pytest -p no:cacheprovider -q -ra --tb=short -m long --long tests

lab: build
	@tools/setup.sh test
	@$(PYTHON) -B tests/lab.py $(LAB)

bench: build
	@tools/setup.sh bench
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
