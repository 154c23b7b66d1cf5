#!/usr/bin/env bash
# Installs the Debian packages of the given sections of packages.txt that are missing, saying which.
#   tools/setup.sh build [test] [lint] [bench]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

missing=()
for section in "$@"; do
	while read -r package command optional; do
		if [ -n "$command" ] && command -v "$command" >/dev/null; then
			continue
		fi
		state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
		[ "$state" != installed ] || continue
		[ -z "$optional" ] || [[ $(apt-cache policy "$package" 2>/dev/null) == *"Candidate: "[!\(]* ]] || continue
		missing+=("$package")
	done < <(sed -n "/^\[$section\]/,/^\[/{/^[^#[]/p}" "$here/packages.txt")
done
[ ${#missing[@]} -gt 0 ] || exit 0

printf 'setup: installing Debian packages: %s\n' "${missing[*]}"
as_root=()
if [ "$(id -u)" != 0 ]; then
	if ! command -v sudo >/dev/null; then
		echo "setup: not root and no sudo; as root: apt-get install ${missing[*]}" >&2
		exit 1
	fi
	as_root=(sudo)
fi
# Servers among them (redis) are wanted as programs: a policy that is there only for the while keeps them from being started.
policy=/usr/sbin/policy-rc.d
made_policy=
if [ ! -e $policy ]; then
	printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee $policy >/dev/null
	"${as_root[@]}" chmod 755 $policy
	made_policy=1
fi
leave() {
	[ -z "$made_policy" ] || "${as_root[@]}" rm -f $policy
}
trap leave EXIT
apt() {
	"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -y -q -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 "$@"
}
log=$(mktemp)
if ! { apt update && apt install --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
	tail -n 40 "$log" >&2
	echo "setup: apt-get failed; the whole log is in $log" >&2
	exit 1
fi
rm -f "$log"
