#!/usr/bin/env bash
# Runs one fuzzer for some seconds from its seeds: tools/fuzz.sh build-fuzz/tests/fuzz/FUZZER SECONDS
# The random seed is fixed unless PBEAM_FUZZ_SEED is set. Seed inputs are in tests/fuzz/seeds/NAME, what was found to reach more in
# tests/fuzz/corpus/NAME (made by -merge=1). Findings stay in build-fuzz/findings.
set -euo pipefail
cd "$(dirname "$0")/.."
fuzzer=$1
seconds=$2
name=$(basename "$fuzzer" | sed "s/^fuzz_//; s/_fuzz$//")
findings=build-fuzz/findings
corpus=build-fuzz/corpus/$name
mkdir -p "$findings" "$corpus"
seeds=()
for kept in seeds corpus; do
	[ ! -d "tests/fuzz/$kept/$name" ] || seeds+=("tests/fuzz/$kept/$name")
done
exec "$fuzzer" -seed="${PBEAM_FUZZ_SEED:-1998}" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
	-artifact_prefix="$findings/$name-" "$corpus" "${seeds[@]}"
