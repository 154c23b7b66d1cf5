#!/usr/bin/env bash
# Installs the Debian packages of the given sections of packages.txt that are missing. It says what it will do first.
#   tools/setup.sh build [lab] [test] [fresh] [lint] [bench]
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

line="apt-get update && apt-get install --no-install-recommends ${missing[*]}"
as_root=()
if [ "$(id -u)" != 0 ]; then
	as_root=(sudo)
	# sudo -v asks for the password, on a terminal only, and fails for a user who may not use sudo.
	if ! command -v sudo >/dev/null || ! { sudo -n true 2>/dev/null || { [ -t 0 ] && sudo -v; }; }; then
		echo "setup: these Debian packages are missing, and you cannot become root here. Ask an administrator to run, as root:" >&2
		echo "  $line" >&2
		exit 1
	fi
fi
echo "setup: ${#missing[@]} Debian packages are missing. Running${as_root:+ with sudo}, without starting any service that they contain:"
echo "  $line"

# The tests need servers such as redis as programs only: a policy keeps dpkg from starting them.
policy=/usr/sbin/policy-rc.d
made_policy=
if [ ! -e $policy ]; then
	printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee $policy >/dev/null
	"${as_root[@]}" chmod 755 $policy
	made_policy=1
fi
log=$(mktemp)
leave() {
	[ -z "$made_policy" ] || "${as_root[@]}" rm -f $policy
	[ -z "$log" ] || rm -f "$log"
}
trap leave EXIT
apt() {
	"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -y -q -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 "$@"
}
if ! { apt update && apt install --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
	tail -n 40 "$log" >&2
	echo "setup: apt-get failed; the whole log is in $log" >&2
	log=
	exit 1
fi
