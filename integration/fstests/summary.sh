#!/bin/bash
# summary.sh CHECK-OUTPUT EXPECTED: counts what passed, failed and did not run,
# and compares the last two with the list of those known to. Lines of EXPECTED:
# "generic/NNN fail|notrun|flaky REASON"; fails if something not listed failed.
out=$1 expected=$2
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT

awk '
	/^(generic|shared|selftest|fuse)\/[0-9]+/ {
		t = $1
		if ($0 ~ /\[not run\]/) s = "notrun"
		else if ($0 ~ /\[expunged\]/) s = "expunged"
		else if ($0 ~ /\[failed|- output mismatch|killed after|_check_|\[dmesg|is inconsistent/) s = "fail"
		else s = "pass"
		if (result[t] != "fail") result[t] = s
	}
	/^\[failed|^killed after|_prismfs_fsck:|^_check_.*: something found/ { if (t != "") result[t] = "fail" }
	END { for (t in result) print t, result[t] }
' "$out" | sort >"$tmp/all"
grep -E ' (fail|notrun)$' "$tmp/all" >"$tmp/now"
sed 's/#.*//' "$expected" 2>/dev/null | awk 'NF >= 2 { print $1, $2 }' | sort >"$tmp/listed"

count() { grep -c " $1\$" "$tmp/all"; }
echo "passed $(count pass), failed $(count fail), not run $(count notrun)"
status=0
while read -r t s; do
	grep -qE "^$t ($s|flaky)\$" "$tmp/listed" && continue
	echo "not listed: $t $s"
	[ "$s" = fail ] && status=1
done <"$tmp/now"
while read -r t s; do
	[ "$s" = flaky ] && continue
	if grep -q "^$t pass\$" "$tmp/all"; then
		echo "listed as $s, but passed: $t"
	fi
done <"$tmp/listed"
exit $status
