#!/bin/sh
# Saves the program of tests/images with the built version into tests/images/VERSION[-SUFFIX].ckpt.zst, for tests/e2e/test_old_images.py.
# Run once for each release, and before a change of the image format: tools/save_image.sh [SUFFIX]. Images are kept for ever; those there are not replaced.
set -eu
cd "$(dirname "$0")/.."
version=$(build/scip/scip --version)
out=tests/images/${version#scip }${1:+-$1}.ckpt.zst
[ ! -e "$out" ] || { echo "save_image.sh: $out exists; give a suffix" >&2; exit 1; }
if [ "$(id -u)" = 0 ]; then # an ordinary user's image restores for every ordinary user
	user="setpriv --reuid 65534 --regid 65534 --init-groups"
fi
work=$(mktemp -d)
trap 'exec 3>&-; rm -rf "$work"' EXIT
# Nothing of this machine is to be in the image.
XDG_RUNTIME_DIR=$work/run XDG_STATE_HOME=$work/state
export XDG_RUNTIME_DIR XDG_STATE_HOME
mkdir -m 700 "$work/run"
mkdir "$work/bin"
cp build/scip/scip build/pbeamd/pbeamd build/pbeamctl/pbeamctl "$work/bin" # which that user may execute
PATH=$work/bin:/usr/bin:/bin
musl-gcc -Os -static -pthread -D_GNU_SOURCE -Wl,-z,noseparate-code -Wl,--build-id=none -s -o "$work/state" tests/images/state.c
mkfifo "$work/in" "$work/out"
[ -z "${user-}" ] || chown -R 65534:65534 "$work"
(cd / && exec ${user-} env -i HOME=/ PATH="$PATH" XDG_RUNTIME_DIR="$XDG_RUNTIME_DIR" XDG_STATE_HOME="$XDG_STATE_HOME" scip run --close-inherited --name state -- "$work/state" <"$work/in" >"$work/out") &
exec 3>"$work/in" 4<"$work/out"
read -r line <&4
[ "$line" = ready ]
rm "$work/state" # its pages are in the image
${user-} pbeamctl checkpoint state --kill -o "$work/image.ckpt"
wait || :
pbeamctl image verify "$work/image.ckpt"
zstd -q -19 -o "$out" "$work/image.ckpt"
chmod 644 "$out"
ls -l "$out"
