#!/bin/sh
# The tour of `make run`: demo.sh PRISMFS DIRECTORY
set -eu
prismfs=$(realpath "$1") state=$2
mkdir -p "$state"
state=$(realpath "$state")
store=$state/store mnt=$state/mnt log=$state/log

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
run() {
	printf '  $ %s\n' "$*"
	code=0
	out=$("$@" 2>&1) || code=$?
	[ -z "$out" ] || printf '%s\n' "$out" | sed 's/^/    /'
	[ $code = 0 ] || { echo "  ended with $code"; exit $code; }
}

if [ ! -f "$store/superblock" ]; then
	say "A store is a directory."
	run "$prismfs" mkfs "$store"
fi
mkdir -p "$mnt" 2>/dev/null || true
if ! "$prismfs" status "$store" >/dev/null 2>&1; then
	say "Mounted, it is a file system like any other."
	run "$prismfs" mount "$store" "$mnt" -o "log=$log"
fi

tree=$(go env GOROOT)/src
[ -d "$tree" ] || tree=/usr/share
rm -rf "$mnt/tour"
mkdir "$mnt/tour"
say "A source tree goes in ($(find "$tree"/os "$tree"/net -type f 2>/dev/null | wc -l) files)."
run cp -a "$tree/os" "$tree/net" "$mnt/tour"
run ls "$mnt/tour/os/user"
run sh -c "grep -r 'func Listen' '$mnt/tour/net' | head -3"
run du -sh "$mnt/tour"
(cd "$mnt/tour" && find . -type f -print0 | sort -z | xargs -0 sha256sum) >"$state/sums"
run "$prismfs" sync "$mnt"

say "The daemon is killed, without warning, and the store is mounted again."
pid=$("$prismfs" status "$mnt" | sed -n 's/^pid: //p')
run kill -9 "$pid"
while kill -0 "$pid" 2>/dev/null && ! grep -q '^State:.Z' "/proc/$pid/status" 2>/dev/null; do sleep 0.01; done
run "$prismfs" mount "$store" "$mnt" -o "log=$log"
run sh -c "cd '$mnt/tour' && sha256sum --quiet -c '$state/sums' && echo 'all checksums are right'"
run sh -c "cd '$mnt/tour' && diff -r '$tree/os' os && diff -r '$tree/net' net && echo 'the trees are equal'"
rm -f "$state/sums"

say "It stays mounted at $mnt"
echo "  look:  ls $mnt/tour; $1 status $mnt"
echo "  stop:  make stop        (or $1 umount $mnt)"
