#!/usr/bin/env bash
# Configures (once) and builds a preset, quietly unless it fails: tools/build.sh release|debug|asan|clang|fuzz|coverage|tsan [target...]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
shift
dir=build-$preset
[ "$preset" != release ] || dir=build
log=$(mktemp)
trap 'rm -f "$log"' EXIT
printf 'build: %s\n' "$preset"
if [ ! -e "$dir/build.ninja" ] && ! cmake --preset "$preset" >"$log" 2>&1; then
	cat "$log" >&2
	exit 1
fi
if ! ninja -C "$dir" "$@" >"$log" 2>&1; then
	cat "$log" >&2
	exit 1
fi
