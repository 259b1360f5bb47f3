package metadata_test

import (
	"fmt"
	"path"
	"strings"
	"testing"

	"prismfs/metadata"
	"prismfs/uring/simdisk"
)

// TestCheckReportsDamagedTable: a table that cannot be read is a problem of the
// store, which a check reports, and no failure of the check.
func TestCheckReportsDamagedTable(t *testing.T) {
	disk := simdisk.New(1)
	l := newLanes(t)
	s := newStore(t, disk, l)
	for i := range 3000 {
		makeInode(t, s, metadata.RootIno, fmt.Sprintf("f%d", i), 0100644, 0)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, disk, l) // puts what the log holds into a table
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	names, err := disk.List("db")
	if err != nil {
		t.Fatal(err)
	}
	var table string // the largest
	var size int64
	for _, name := range names {
		name = path.Join("db", name)
		if n, err := disk.Stat(name); err == nil && n > size && path.Ext(name) == ".ldb" {
			table, size = name, n
		}
	}
	// In the middle are blocks that no Open reads.
	if err := disk.Corrupt(table, size/2, 4); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, disk, l)
	defer s.Close()
	var problems []string
	rep, err := s.Check(func(p string) { problems = append(problems, p) })
	if err != nil || rep.Problems == 0 || !strings.Contains(strings.Join(problems, "\n"), ".ldb") {
		t.Errorf("check: %v, problems %q", err, problems)
	}
}
