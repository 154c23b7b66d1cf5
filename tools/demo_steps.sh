# Functions for the parts of `make demo`, which source this file.
# shellcheck shell=bash

# Close descriptors inherited from the caller's shell: a checkpoint would refuse foreign pipes and sockets.
for fd in /proc/self/fd/*; do
	fd=${fd##*/}
	case $fd in
	[012] | 255) ;; # 255: bash reads the script from there
	*) eval "exec $fd>&-" ;;
	esac
done

bold=
plain=
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
	bold=$'\033[1m'
	plain=$'\033[0m'
fi
say() { printf '\n%s# %s%s\n' "$bold" "$*" "$plain"; }
try() {
	printf '$ %s\n' "$*"
	"$@"
}
leave() { # ends the demo's job
	pbeamctl kill -s KILL primes >/dev/null 2>&1 || true
}
trap leave EXIT
until_shown() { # waits until the output has the text
	local left=600
	while [ $((left -= 1)) -gt 0 ]; do
		! grep -q "$1" output || return 0
		sleep 0.1
	done
	echo "demo: no '$1' within a minute; the output:" >&2
	cat output >&2
	return 1
}
