#!/usr/bin/env bash
# make demo: checkpoints, kills and rolls back a Python program, which then finishes with the right result; then migrates one to another
# host and back while it runs (two network namespaces, lab/). Runs as an ordinary user: root becomes "nobody" first. All files are below
# one temporary directory.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

if [ "${1:-}" != inside ]; then
	top=$(mktemp -d /tmp/pbeam-demo-XXXXXX)
	trap 'rm -rf "$top"' EXIT
	chmod 755 "$top"
	cmake --install "$root/build" --prefix "$top" >/dev/null
	cp "$root/demo/primes.py" "$root/tools/demo.sh" "$root/tools/demo_steps.sh" "$root/tools/demo_migrate.sh" "$top"
	mkdir -m 700 "$top/home" "$top/run" "$top/state"
	become=()
	if [ "$(id -u)" = 0 ]; then
		chown nobody: "$top/home" "$top/run" "$top/state"
		become=(setpriv --reuid nobody --regid "$(id -g nobody)" --clear-groups --inh-caps=-all --)
	fi
	cd "$top/home"
	"${become[@]}" env "HOME=$top/home" "XDG_RUNTIME_DIR=$top/run" "XDG_STATE_HOME=$top/state" PBEAMD_IDLE=1 "PATH=$top/bin:$PATH" \
		bash "$top/demo.sh" inside "$top"
	cd "$root"
	"${PYTHON:-/usr/bin/python3}" -B -m lab --hosts 2 --command "bash '$top/demo_migrate.sh' '$top'"
	exit
fi

top=$2
# shellcheck source=tools/demo_steps.sh
. "$top/demo_steps.sh"

say "A Python program looks for primes, as user $(id -un), under scip"
printf '$ scip run -d --name primes -- python3 primes.py >output\n'
# shellcheck disable=SC2016 # the inner shell expands it
scip run -d --name primes -- sh -c 'exec /usr/bin/python3 -u "$1" >output 2>&1 </dev/null' sh "$top/primes.py"
until_shown ' 5000 primes'
try pbeamctl ps
try tail -n 1 output

say "It is checkpointed, and goes on"
try pbeamctl checkpoint primes
until_shown ' 7000 primes'
try tail -n 1 output

say "It is killed"
try pbeamctl kill -s KILL primes
sleep 0.5
try pbeamctl ps

say "It is rolled back: process, memory and output file are as at the checkpoint, and it goes on"
try pbeamctl rollback primes
try tail -n 1 output
try pbeamctl log primes
until_shown 'done\|wrong\|Error'
try tail -n 3 output
grep -q '^done$' output
say "The sum is right: nothing was lost, nothing computed twice"
