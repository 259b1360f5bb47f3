package oracle

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"prismfs/engine"
)

// python is the interpreter that the distribution's python3-plyvel is for.
const python = "/usr/bin/python3"

// leveldbScript opens a database with LevelDB itself, prints all entries, and
// then applies the updates on its input: "p key value" or "d key", all in hex.
const leveldbScript = `
import sys, plyvel
db = plyvel.DB(sys.argv[1], create_if_missing=True, paranoid_checks=True,
               bloom_filter_bits=10, write_buffer_size=65536,
               compression=sys.argv[2] if sys.argv[2] != 'none' else None)
for k, v in db.iterator(verify_checksums=True):
    assert db.get(k, verify_checksums=True) == v
    print(k.hex(), v.hex())
for line in sys.stdin:
    f = line.rstrip('\n').split(' ')
    if f[0] == 'p':
        db.put(bytes.fromhex(f[1]), bytes.fromhex(f[2]))
    else:
        db.delete(bytes.fromhex(f[1]))
db.close()
`

// withLevelDB checks that LevelDB sees model in dir, then lets it make the
// updates.
func withLevelDB(t *testing.T, dir, compression string, model map[string]string, batches [][]update) {
	t.Helper()
	var in, stderr bytes.Buffer
	for _, b := range batches {
		for _, u := range b {
			if u.del {
				fmt.Fprintf(&in, "d %x\n", u.key)
			} else {
				fmt.Fprintf(&in, "p %x %x\n", u.key, u.value)
			}
		}
	}
	cmd := exec.Command(python, "-c", leveldbScript, filepath.Join(dir, "db"), compression)
	cmd.Stdin, cmd.Stderr = &in, &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("LevelDB: %v\n%s", err, &stderr)
	}
	keys := sortedKeys(model)
	n := 0
	lines := bufio.NewScanner(bytes.NewReader(out))
	for ; lines.Scan(); n++ {
		k, v, _ := strings.Cut(lines.Text(), " ")
		key, err1 := hex.DecodeString(k)
		value, err2 := hex.DecodeString(v)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		if n >= len(keys) || string(key) != keys[n] || string(value) != model[keys[n]] {
			t.Fatalf("LevelDB: entry %d is %q", n, key)
		}
	}
	if err := lines.Err(); err != nil || n != len(keys) {
		t.Fatalf("LevelDB: %d of %d entries: %v", n, len(keys), err)
	}
}

// The same as with goleveldb, with the original.
func TestLevelDBBackAndForth(t *testing.T) {
	if out, err := exec.Command(python, "-c", "import plyvel").CombinedOutput(); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("no LevelDB: %v\n%s", err, out)
		}
		t.Skip("LevelDB comes from python3-plyvel, which isn't installed")
	}
	for name, codec := range map[string]engine.Codec{"none": engine.None, "snappy": engine.Snappy} {
		t.Run(name, func(t *testing.T) {
			rng := newRand(t)
			dir := t.TempDir()
			model := map[string]string{}
			for range 2 {
				withOurs(t, dir, codec, func(db *engine.DB) {
					checkOurs(t, db, model)
					h := history(rng, 300)
					writeOurs(t, db, h)
					apply(model, h)
				})
				h := history(rng, 300)
				withLevelDB(t, dir, name, model, h)
				apply(model, h)
			}
			withOurs(t, dir, codec, func(db *engine.DB) {
				if err := db.CompactRange(nil, nil); err != nil {
					t.Fatal(err)
				}
				checkOurs(t, db, model)
			})
			withLevelDB(t, dir, name, model, nil)
		})
	}
}
