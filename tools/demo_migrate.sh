#!/usr/bin/env bash
# The second part of make demo: a live migration, run on the laboratory's first host.
set -euo pipefail
top=$1
# shellcheck source=tools/demo_steps.sh
. "$top/demo_steps.sh"

say "Two hosts, a and b, each with its own network and its own pbeamd: one cluster"
try pbeamctl hosts

say "The same program runs on a; this terminal is its console"
printf '$ scip run --name primes -- python3 primes.py\n'
scip run --name primes -- /usr/bin/python3 -u "$top/primes.py" </dev/null 2>&1 | tee output &
console=$!
until_shown ' 4000 primes'

say "It moves to b while it runs, and goes on writing here"
try pbeamctl migrate primes b
try pbeamctl ps
until_shown ' 9000 primes'

say "And back"
try pbeamctl migrate primes a
try pbeamctl ps
wait "$console"
until_shown 'done\|wrong\|Error'
grep -q '^done$' output
say "The sum is right, every line came once"
[ "$(grep -c primes, output)" = 16 ]
