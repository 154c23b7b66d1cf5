#!/usr/bin/env bash
# Static checks. Runs every tool; the exit status is 1 if any complained.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
: "${PYTHON:=/usr/bin/python3}"
bad=0
step() {
	local name=$1
	shift
	if "$@"; then
		printf 'lint: %s ok\n' "$name"
	else
		printf 'lint: %s FAILED\n' "$name"
		bad=1
	fi
}
# shellcheck disable=SC2317 # called through step
listed() { # glob... -- command...: runs the command on the matching files of the repository
	local globs=()
	while [ "$1" != -- ]; do
		globs+=("$1")
		shift
	done
	shift
	git ls-files -z "${globs[@]}" | xargs -0 -r "$@"
}
step clang-format listed '*.c' '*.h' -- clang-format --dry-run -Werror
step shellcheck listed '*.sh' '.ci/run' -- shellcheck
step pyflakes listed '*.py' -- pyflakes3
for check in tests/check_*.py; do
	step "$check" "$PYTHON" "$check" --strict
done
# cppcheck knows neither cleanup attributes nor linker symbols, and reports uninitialized values that both compilers rule out.
step cppcheck listed '*.c' -- cppcheck --quiet --error-exitcode=1 --inline-suppr --enable=portability -I. --suppress=memleak --suppress=resourceLeak --suppress=comparePointers --suppress=uninitvar --suppress=ctuuninitvar --suppress=ctunullpointer --suppress=internalAstError --suppress=autoVariables --suppress=uninitStructMember
step clang tools/build.sh clang
exit $bad
