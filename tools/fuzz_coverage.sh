#!/usr/bin/env bash
# Prints how much of each parser the fuzzers reach from their seeds and corpora, as the table of docs/SECURITY.md. Needs Debian's llvm.
#   tools/fuzz_coverage.sh [SECONDS]     # fuzz each for so long before; 0: only what is kept
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-0}
tools/build.sh coverage >&2
out=build-coverage/profiles
rm -rf "$out"
mkdir -p "$out"

# Fuzzer, and the sources that it is for.
parsers=(
	"bridge scip/bridge/bridge_channel.c scip/bridge/bridge_stream.c scip/bridge/bridge_pump.c"
	"cut scip/cut/pair.c scip/cut/return_connect.c scip/cut/part_store.c"
	"delta scip/precopy/delta.c"
	"elf scip/tracee/symbols.c scip/files/files_elf.c"
	"files scip/files/files_receiver.c scip/files/files_localize.c scip/files/files_store.c"
	"frame proto/frame.c"
	"image image/reader.c image/digest.c"
	"link scip/job/link_guest.c scip/job/link_stub.c scip/job/link_peer.c"
	"link scip/job/remote_console_guest.c scip/job/remote_console_home.c scip/job/remote_console_output.c scip/job/remote_console_positions.c"
	"manifest scip/rebuild/plan.c scip/rebuild/inherit.c scip/rebuild/extents.c scip/rebuild/rebuild_check.c scip/rebuild/rebuild_shared.c"
	"manifest scip/object image/file_undo.c"
	"maps scip/tracee/procfs.c"
	"pages scip/precopy/page_receiver.c"
	"reconnect scip/reconnect/reconnect_serve.c scip/reconnect/reconnect_callers.c scip/ends/end_tcp_exchange.c"
	"record namespace/paths.c namespace/record.c namespace/record_pts.c namespace/record_ipc.c namespace/record_peer.c image/file_journal.c"
	"wire pbeamd/registry/registry_copy.c namespace/registry.c pbeamd/services/checkpoints.c"
)

run() { # fuzzer
	local inputs=()
	[ ! -d "tests/fuzz/seeds/$1" ] || inputs+=("tests/fuzz/seeds/$1")
	[ ! -d "tests/fuzz/corpus/$1" ] || inputs+=("tests/fuzz/corpus/$1")
	[ ! -d "build-fuzz/corpus/$1" ] || inputs+=("build-fuzz/corpus/$1")
	mkdir -p "$out/$1" # a fuzzer writes nowhere but to the directories that it is given
	local how=-runs=0
	[ "$seconds" = 0 ] || how=-max_total_time=$seconds
	LLVM_PROFILE_FILE=$out/$1/profile "build-coverage/tests/fuzz/${1}_fuzz" "$how" "$out/$1" "${inputs[@]}" >"$out/$1.log" 2>&1 ||
		{ tail -20 "$out/$1.log" >&2; exit 1; }
	llvm-profdata merge -o "$out/$1.profile" "$out/$1/profile"
}

printf '| fuzzer | sources | lines | reached |\n|---|---|---|---|\n'
for entry in "${parsers[@]}"; do
	read -r name sources <<<"$entry"
	[ -e "$out/$name.profile" ] || run "$name"
	# shellcheck disable=SC2086
	llvm-cov export -summary-only -instr-profile "$out/$name.profile" "build-coverage/tests/fuzz/${name}_fuzz" $sources 2>/dev/null |
		"${PYTHON:-/usr/bin/python3}" -c '
import json, sys
lines = json.load(sys.stdin)["data"][0]["totals"]["lines"]
print("| %s | %s | %d | %d %% |" % (sys.argv[1], ", ".join(sys.argv[2:]), lines["count"], lines["percent"]))' "$name" $sources
done
