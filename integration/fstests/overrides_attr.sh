# Functions of xfstests' common/attr that list file systems without this one,
# laid over the suite's own by run.sh. Sourced by bash.

# The kernel's FUSE hands on ACLs of at most a page: a header of 4 bytes and 8
# for each entry.
_acl_get_max()
{
	echo 511
}
