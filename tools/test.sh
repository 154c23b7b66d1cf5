#!/usr/bin/env bash
# Runs the tests in stages. Each stage writes a JUnit file to build/results; summary.py adds them up.
#   tools/test.sh quick|all|long
# long: the fuzzers for 60 s each, all end-to-end and cluster tests with ASan and UBSan, the unit tests with TSan.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
: "${PYTHON:=/usr/bin/python3}"
what=${1:-all}
results=$PWD/build/results
rm -rf "$results"
began=$SECONDS
tools/build.sh release || exit 1
mkdir -p "$results"

# A stage that is one command. Shows its output if it fails.
single() { # name command...
	local name=$1 start=$SECONDS out
	shift
	out=$(timeout 900 "$@" 2>&1)
	local rc=$?
	{
		printf '<testsuite name="%s"><testcase classname="%s" name="%s" time="%d">' check check "$name" $((SECONDS - start))
		[ $rc = 0 ] || printf '<failure message="exit %d"/>' $rc
		printf '</testcase></testsuite>\n'
	} >"$results/check-$name.xml"
	if [ $rc = 0 ]; then
		printf 'ok    %-28s %4d s\n' "$name" $((SECONDS - start))
	else
		printf 'FAIL  %-28s %4d s\n%s\n' "$name" $((SECONDS - start)) "$out"
	fi
}

# make demo in a fresh Debian root.
fresh() {
	if [ "$(id -u)" != 0 ]; then
		echo "SKIP  fresh-root: needs root to build a Debian root"
		printf '<testsuite><testcase classname="check" name="fresh-root"><skipped message="needs root"/></testcase></testsuite>\n' >"$results/check-fresh-root.xml"
		return
	fi
	single fresh-root tools/fresh_root.sh --user demo
}

unit() { # name builddir
	local start=$SECONDS
	printf '\n== %s\n' "$1"
	timeout 600 ctest --test-dir "$2" --output-on-failure --no-tests=error -j2 --output-junit "$results/$1.xml"
	if [ ! -s "$results/$1.xml" ]; then
		printf '<testsuite><testcase classname="ctest" name="%s"><failure message="did not finish"/></testcase></testsuite>\n' "$1" >"$results/$1.xml"
	fi
	printf '%d s\n' $((SECONDS - start))
}

e2e() { # name builddir pytest-arguments...
	local name=$1 build=$2
	shift 2
	printf '\n== %s\n' "$name"
	PBEAM_BUILD=$PWD/$build "$PYTHON" -B -m pytest -p no:cacheprovider -q -ra --tb=short --junitxml "$results/$name.xml" "$@"
	if [ ! -s "$results/$name.xml" ]; then
		printf '<testsuite><testcase classname="pytest" name="%s"><failure message="did not finish"/></testcase></testsuite>\n' "$name" >"$results/$name.xml"
	fi
}

# Two fuzzers at once.
fuzz() {
	local fuzzer pair=() seconds=8
	[ "$what" != long ] || seconds=60
	printf '\n== fuzz\n'
	for fuzzer in build-fuzz/tests/fuzz/*_fuzz; do
		single "$(basename "$fuzzer")" tools/fuzz.sh "$fuzzer" "$seconds" &
		pair+=($!)
		[ ${#pair[@]} = 1 ] || { wait "${pair[@]}"; pair=(); }
	done
	[ ${#pair[@]} = 0 ] || wait "${pair[@]}"
}

# The harness fails a test in which a sanitizer reported something.
sanitizers() {
	e2e e2e-asan build-asan tests/e2e
	wait "$cluster"
	e2e cluster-asan build-asan tests/cluster
	single build-tsan tools/build.sh tsan
	unit unit-tsan build-tsan
}

printf '\n== source\n'
single format bash -c "git ls-files '*.c' '*.h' | xargs clang-format --dry-run -Werror"
for check in tests/check_*.py; do
	name=${check#tests/check_}
	single "${name%.py}" "$PYTHON" "$check"
done
unit unit build
if [ "$what" != quick ]; then
	e2e e2e build tests/e2e
	# The cluster tests wait more than they compute: the other stages run beside them.
	e2e cluster build tests/cluster >"$results/cluster.log" 2>&1 &
	cluster=$!
	fresh >"$results/fresh.log" 2>&1 &
	fresh=$!
	single build-asan tools/build.sh asan
	unit unit-asan build-asan
	single build-fuzz tools/build.sh fuzz
	fuzz
	if [ "$what" = long ]; then
		sanitizers
	else
		e2e e2e-asan build-asan tests/e2e -m short
	fi
	e2e fault build tests/fault
	e2e flavours build tests/flavours
	wait "$cluster"
	cat "$results/cluster.log"
	wait "$fresh"
	cat "$results/fresh.log"
fi
printf '\n== result\n'
"$PYTHON" tools/summary.py $((SECONDS - began)) "$results"/*.xml
