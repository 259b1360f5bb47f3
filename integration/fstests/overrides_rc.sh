# Functions of xfstests' common/rc that know nothing of a FUSE file system's
# store, laid over the suite's own by run.sh. Sourced by bash.

# _prismfs_fsck STORE: the store must be unmounted.
_prismfs_fsck()
{
	local out=$seqres.fsck
	if "$PRISMFS" fsck "$1" >"$out" 2>&1; then
		rm -f "$out"
		return 0
	fi
	_log_err "_prismfs_fsck: $1 is inconsistent (see $out)"
	head -20 "$out" >>$seqres.full
	return 1
}

_check_test_fs()
{
	_test_unmount 2>/dev/null
	_prismfs_fsck $TEST_DEV || return 1
	_test_mount
}

_repair_test_fs()
{
	_test_unmount
	mountpoint -q $TEST_DIR && return 1
	mkdir $PRISMFS_WORK/broken.$$ && mv $TEST_DEV/* $PRISMFS_WORK/broken.$$
	"$PRISMFS" mkfs $TEST_DEV >/dev/null
}

_check_scratch_fs()
{
	local mounted=no
	mountpoint -q $SCRATCH_MNT && mounted=yes
	_scratch_unmount 2>/dev/null
	_prismfs_fsck ${1:-$SCRATCH_DEV} || return 1
	[ $mounted = no ] || _scratch_mount
}

_check_dev_fs()
{
	_prismfs_fsck $1
}

# A new store each time, as mkfs(8) would make; on a new disk where the last one
# had a size of its own.
_scratch_mkfs()
{
	_prismfs_scratch_free
	if [ -e $PRISMFS_WORK/sized ]; then
		_prismfs_scratch_disk $(stat -c %s $PRISMFS_WORK/test.img) && rm $PRISMFS_WORK/sized
		return
	fi
	rm -rf $SCRATCH_DEV/* && "$PRISMFS" mkfs $SCRATCH_DEV >/dev/null
}

# umount(8) returns before the daemon has closed the store.
_prismfs_scratch_free()
{
	_scratch_unmount 2>/dev/null
	[ ! -e $SCRATCH_DEV/lock ] || flock $SCRATCH_DEV/lock true
}

# _prismfs_scratch_disk BYTES: a file with an ext4 in it, with a new store.
_prismfs_scratch_disk()
{
	local img=$PRISMFS_WORK/scratch.img
	umount $SCRATCH_DEV && rm $img && truncate -s $1 $img &&
		mkfs.ext4 -q -m 0 -E lazy_itable_init=1,nodiscard $img >>$seqres.full 2>&1 &&
		mount -o loop,discard $img $SCRATCH_DEV &&
		rmdir $SCRATCH_DEV/lost+found &&
		"$PRISMFS" mkfs $SCRATCH_DEV >/dev/null
}

# What the store keeps for itself comes on top of the size asked for.
_try_scratch_mkfs_sized()
{
	_prismfs_scratch_free
	touch $PRISMFS_WORK/sized
	_prismfs_scratch_disk $(($1 + (256 << 20)))
}

# df shows the type with its subtype.
_fs_type()
{
	_df_device $1 | $AWK_PROG '{ print $2 }' | sed -e 's/^fuse\.prismfs$/fuse/'
}

# umount(8) takes a directory for a mount point, so that a store can't be named.
eval "_prismfs_orig$(declare -f _unmount)"
_unmount()
{
	local arg args=()
	for arg in "$@"; do
		case $arg in
		"$TEST_DEV") arg=$TEST_DIR ;;
		"$SCRATCH_DEV") arg=$SCRATCH_MNT ;;
		esac
		args+=("$arg")
	done
	_prismfs_orig_unmount "${args[@]}"
}

# Times are 64 bits wide.
_filesystem_timestamp_range()
{
	echo "$((1 << 63)) $(((1 << 63) - 1))"
}

# Names are bytes.
_require_names_are_bytes()
{
	true
}
