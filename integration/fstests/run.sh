#!/bin/bash
# Runs xfstests, or pjdfstest, against prismfs: see README.md.
#
#	run.sh fstests   DIR [check's arguments ...]     (default: -g quick)
#	run.sh pjdfstest DIR [prove's arguments ...]
#
# Environment:
#
#	PRISMFS_BIN     the program to test (default: built from this tree)
#	PRISMFS_WORK    where stores, mount points and results go (default: /var/tmp)
#	FUSE_URING      on, off or auto (default)
#	WRITEBACK       1: mount with -o writeback
#	EXTRA_OPTS      more mount options, with a comma before each
#	DISK_SIZE       of the disk that each store gets (default 12G, sparse)
#	TEST_SECONDS    longest time for one test (default 900)
#	EXPECTED        the list to compare with (default: expected.txt beside this)
set -u
here=$(cd "$(dirname "$0")" && pwd)
usage() { sed -n '2,/^set/{/^#/s/^# \?//p}' "$0" >&2; exit 2; }
[ $# -ge 2 ] || usage
suite=$1 dir=$(realpath "$2") || exit 2
shift 2
[ "$(id -u)" = 0 ] || { echo "$0: must run as root" >&2; exit 2; }

# Everything happens in a mount namespace of its own: the mount helper is seen by
# nobody else, and no mount outlives the run.
if [ -z "${PRISMFS_NAMESPACE:-}" ]; then
	export PRISMFS_NAMESPACE=1
	exec unshare --mount --propagation private "$0" "$suite" "$dir" "$@"
fi

work=$(mktemp -d "${PRISMFS_WORK:-/var/tmp}/prismfs-$suite-XXXXXX") || exit 1
chmod 755 "$work" # other users are part of the tests
bin=${PRISMFS_BIN:-}
if [ -z "$bin" ]; then
	bin=$work/prismfs
	(cd "$here/../.." && go build -o "$bin" ./cmd/prismfs) || exit 1
fi
bin=$(realpath "$bin")
mkdir "$work"/{test,scratch,mnt-test,mnt-scratch,sbin,suite,results}

# mount(8) looks for helpers in /sbin only.
ln -s "$bin" "$work/sbin/mount.fuse.prismfs"
mount -t overlay -o ro,lowerdir="$work/sbin:$(realpath /sbin)" prismfs-helper "$(realpath /sbin)" || exit 1

options=dev,suid,allow_other,default_permissions,fuse_uring=${FUSE_URING:-auto}
[ "${WRITEBACK:-0}" = 1 ] && options+=,writeback
options+=${EXTRA_OPTS:-}

# Each store has a disk of its own, as some tests fill theirs.
make_disk() {
	truncate -s "${DISK_SIZE:-12G}" "$work/$1.img" &&
		mkfs.ext4 -q -m 0 -E lazy_itable_init=1,nodiscard "$work/$1.img" &&
		mount -o loop,discard "$work/$1.img" "$work/$1" &&
		rmdir "$work/$1/lost+found" &&
		"$bin" mkfs "$work/$1" >/dev/null
}
make_disk test && make_disk scratch || exit 1

cleanup() {
	[ -n "${check:-}" ] && kill $check 2>/dev/null
	umount -R "$work/mnt-test" "$work/mnt-scratch" 2>/dev/null
	sleep 1
	umount "$work/test" "$work/scratch" 2>/dev/null
	rm -f "$work"/*.img
}
trap cleanup EXIT
trap 'exit 1' INT TERM

if [ "$suite" = pjdfstest ]; then
	mount -t fuse.prismfs -o "$options" "$work/test" "$work/mnt-test" || exit 1
	(cd "$work/mnt-test" && prove -r "${@:--Q}" "$dir/tests")
	status=$?
	umount "$work/mnt-test" && "$bin" fsck "$work/test" || status=1
	cleanup
	[ $status = 0 ] && rm -rf "$work"
	exit $status
fi
[ "$suite" = fstests ] || usage

# A tree of links to the suite, with one file of ours laid over its functions:
# the suite itself is left as it is.
ln -s "$dir"/* "$work/suite/"
rm "$work/suite/common"
mkdir "$work/suite/common"
ln -s "$dir"/common/* "$work/suite/common/"
for f in rc attr; do
	rm "$work/suite/common/$f"
	{ printf '. %q\n' "$dir/common/$f"; cat "$here/overrides_$f.sh"; } >"$work/suite/common/$f"
done

cat >"$work/local.config" <<END
export FSTYP=fuse
export FUSE_SUBTYP=.prismfs
export TEST_DEV=$work/test
export TEST_DIR=$work/mnt-test
export SCRATCH_DEV=$work/scratch
export SCRATCH_MNT=$work/mnt-scratch
export MOUNT_OPTIONS="-o $options"
export TEST_FS_MOUNT_OPTS="-o $options"
export RESULT_BASE=$work/results
export PRISMFS=$bin
export PRISMFS_WORK=$work
END
export HOST_OPTIONS=$work/local.config

cd "$work/suite" || exit 1
[ $# -gt 0 ] || set -- -g quick
./check "$@" >"$work/check.out" 2>&1 &
check=$!
kill_tree() {
	local child
	for child in $(pgrep -P $1); do
		kill_tree $child
	done
	kill -9 $1 2>/dev/null
}

# A test that takes too long is killed, and fails for what its output lacks.
(
	while sleep 5 && kill -0 $check 2>/dev/null; do
		pgrep -f "^[^ ]*bash $work/suite/tests/" | while read -r pid; do
			age=$(ps -o etimes= -p $pid) && [ "$age" -gt "${TEST_SECONDS:-900}" ] || continue
			echo "killed after ${TEST_SECONDS:-900} seconds" >>"$work/check.out"
			kill_tree $pid
		done
	done
) &
if [ -t 1 ] || [ "${VERBOSE:-0}" = 1 ]; then
	tail -n +1 -f --pid=$check "$work/check.out"
fi
wait $check

"$here/summary.sh" "$work/check.out" "${EXPECTED:-$here/expected.txt}"
status=$?
echo "results: $work"
exit $status
