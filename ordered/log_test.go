package ordered_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"prismfs/ordered"
	"prismfs/uring/simdisk"
)

func TestLogReadsBack(t *testing.T) {
	for _, profile := range []ordered.Profile{ordered.Default, ordered.Strict} {
		disk := simdisk.New(1)
		l, err := ordered.CreateLog(ordered.LogOptions{Disk: disk, Name: "1.log", Number: 1, Profile: profile, Preallocate: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		rng := rand.New(rand.NewPCG(1, 2))
		var recs [][]byte
		for i := range 300 {
			rec := randomBytes(rng, rng.IntN(300))
			if i%20 == 0 {
				rec = randomBytes(rng, rng.IntN(100000))
			}
			end, err := l.Append(rec)
			if err != nil {
				t.Fatal(err)
			}
			recs = append(recs, rec)
			if i%7 == 0 {
				if err := l.Sync(end); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		n := 0
		res, err := ordered.ReadLog(disk, "1.log", 1, profile, func(rec []byte, off int64) error {
			if !bytes.Equal(rec, recs[n]) {
				t.Fatalf("profile %d: record %d differs", profile, n)
			}
			n++
			return nil
		})
		if err != nil || res.Records != len(recs) || res.Tail != ordered.Clean {
			t.Fatalf("profile %d: %+v, %v", profile, res, err)
		}
	}
}
