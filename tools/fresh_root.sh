#!/usr/bin/env bash
# Runs a make target in a fresh Debian 12: tools/fresh_root.sh [--user] TARGET...
#
# Builds a root with mmdebstrap (variant minbase; make, git and ca-certificates, as the README asks for, and sudo with --user) from this
# machine's apt sources, clones the committed tree into it, and runs make there, as root or (--user) as an ordinary user with sudo. The root
# lives in a mount, a pid and an ipc namespace: its mounts and processes end with this script, however that ends. Needs root.
set -euo pipefail
source=$(cd "$(dirname "$0")/.." && pwd)
packages=make,git,ca-certificates
user=
if [ "${1:-}" = --user ]; then
	user=newcomer
	packages+=,sudo
	shift
fi
if [ "$(id -u)" != 0 ]; then
	echo "fresh root: needs root" >&2
	exit 77
fi

if [ "${FRESH_ROOT_INSIDE:-}" != 1 ]; then
	root=$(mktemp -d /var/tmp/pbeam-fresh-XXXXXX)
	trap 'rm -rf --one-file-system "$root"' EXIT
	FRESH_ROOT_INSIDE=1 unshare --mount --pid --ipc --fork --kill-child --propagation private "$0" ${user:+--user} "$root" "$@"
	exit
fi

root=$1
shift
sources() { # the Debian archives that this machine uses, as one-line sources
	# shellcheck disable=SC2016 # apt-get expands these
	apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian' 2>/dev/null | grep ' bookworm' | sort -u | sed 's/^/deb /'
}
if [ -z "$(sources)" ]; then # no package lists yet
	apt-get update -qq
fi
log=$(mktemp)
# shellcheck disable=SC2064 # the name is known now
trap "rm -f '$log'" EXIT
if ! sources | mmdebstrap --quiet --mode=root --variant=minbase --include="$packages" bookworm "$root" - >"$log" 2>&1; then
	cat "$log" >&2
	exit 1
fi
# A bind mount, so that pivot_root(2) takes it. In a chroot the kernel refuses user namespaces to ordinary users (user_namespaces(7)).
mount --bind "$root" "$root"
cp /etc/resolv.conf /etc/hosts "$root/etc/"
find /etc/apt/apt.conf.d -name '*proxy*' -exec cp {} "$root/etc/apt/apt.conf.d/" \;
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount -t tmpfs tmpfs "$root/dev/shm"
mount -t tmpfs tmpfs "$root/run"
home=/root
become=()
if [ -n "$user" ]; then
	home=/home/$user
	chroot "$root" useradd --create-home --shell /bin/bash "$user"
	echo "$user ALL=(ALL) NOPASSWD: ALL" >"$root/etc/sudoers.d/$user"
	become=(setpriv --reuid "$user" --regid "$user" --init-groups --)
fi
git clone -q "file://$source" "$root$home/pbeam"
[ -z "$user" ] || chroot "$root" chown -R "$user:" "$home"
cd "$root"
pivot_root . mnt
umount -l /mnt
cd /
# A session of its own: in a new pid namespace the number of the caller's group is 0.
exec setsid --wait env -i "HOME=$home" "USER=${user:-root}" PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb LANG=C.UTF-8 \
	"${become[@]}" make -C "$home/pbeam" "$@" </dev/null
