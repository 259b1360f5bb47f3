package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
)

// benchOptions are the sizes of production on a directory of the host.
func benchOptions(b *testing.B) Options {
	o := testOptions(b, hostDisk(b))
	o.MemTableSize, o.BlockSize, o.TableSize, o.LevelBase = 0, 0, 0, 0
	return o
}

// benchKey is laid out as the file system's keys: tree, table, inode, rest.
func benchKey(dst []byte, n int) []byte {
	dst = append(dst, 1, 'I', 0, 0, 0, byte(n>>32), byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	return append(dst, "0123456789abcd"...)
}

// BenchmarkApply is a batch of four records and some 300 bytes, as a create or
// an unlink makes it.
func BenchmarkApply(b *testing.B) {
	db := mustOpen(b, benchOptions(b))
	defer mustClose(b, db)
	batch := NewBatch()
	value := make([]byte, 45)
	key := make([]byte, 0, 32)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		batch.Reset()
		for range 4 {
			n++
			key = benchKey(key[:0], (n*7919)&0xfffff)
			batch.Put(key, value)
		}
		if err := db.Apply(batch, Block); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(batch.Len()), "bytes/op")
	s := db.Stats()
	b.ReportMetric(float64(s.StallTime.Nanoseconds())/float64(b.N), "stall-ns/op")
}

func BenchmarkApplyParallel(b *testing.B) {
	db := mustOpen(b, benchOptions(b))
	defer mustClose(b, db)
	value := make([]byte, 45)
	var n atomic.Int64
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		batch := NewBatch()
		var key []byte
		for pb.Next() {
			batch.Reset()
			for range 4 {
				key = benchKey(key[:0], int(n.Add(7919))&0xfffff)
				batch.Put(key, value)
			}
			if err := db.Apply(batch, Block); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// fillBench writes n keys with 128-byte values.
func fillBench(b *testing.B, db *DB, n int) {
	batch := NewBatch()
	value := make([]byte, 128)
	for i := range n {
		batch.Put(benchKey(nil, i), value)
		if batch.Count() == 100 || i == n-1 {
			if err := db.Apply(batch, Block); err != nil {
				b.Fatal(err)
			}
			batch.Reset()
		}
	}
}

func benchGets(b *testing.B, db *DB, n int, absent bool) {
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		rng := rand.New(rand.NewPCG(rand.Uint64(), 1))
		var key, value []byte
		for pb.Next() {
			key = benchKey(key[:0], rng.IntN(n))
			if absent {
				key[len(key)-1] = 'x'
			}
			var err error
			value, err = db.Get(value[:0], key, Block)
			if absent != errors.Is(err, ErrNotFound) || !absent && err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkGet(b *testing.B) {
	b.Run("mem", func(b *testing.B) {
		db := mustOpen(b, benchOptions(b))
		defer mustClose(b, db)
		fillBench(b, db, 50000)
		benchGets(b, db, 50000, false)
	})
	for _, absent := range []bool{false, true} {
		name := "tables"
		if absent {
			name = "absent"
		}
		b.Run(name, func(b *testing.B) {
			db := mustOpen(b, benchOptions(b))
			defer mustClose(b, db)
			const n = 200000
			fillBench(b, db, n)
			if err := db.CompactRange(nil, nil); err != nil {
				b.Fatal(err)
			}
			var key []byte
			for i := range n {
				key = benchKey(key[:0], i)
				db.Get(nil, key, Block)
			}
			benchGets(b, db, n, absent)
		})
	}
}

func BenchmarkIterSeekNext10(b *testing.B) {
	db := mustOpen(b, benchOptions(b))
	defer mustClose(b, db)
	const n = 100000
	fillBench(b, db, n)
	if err := db.CompactRange(nil, nil); err != nil {
		b.Fatal(err)
	}
	fillBench(b, db, 1000)
	b.ReportAllocs()
	rng := rand.New(rand.NewPCG(1, 1))
	var key []byte
	for b.Loop() {
		it := db.NewIter(IterOptions{})
		key = benchKey(key[:0], rng.IntN(n-20))
		ok := it.SeekGE(key)
		for range 10 {
			if !ok {
				b.Fatal(it.Err())
			}
			ok = it.Next()
		}
		it.Close()
	}
}

func BenchmarkBarrier(b *testing.B) {
	for _, writers := range []int{1, 16} {
		b.Run(fmt.Sprint(writers), func(b *testing.B) {
			db := mustOpen(b, benchOptions(b))
			defer mustClose(b, db)
			b.SetParallelism(writers) // times GOMAXPROCS
			if writers == 1 {
				for n := 0; b.Loop(); n++ {
					put(b, db, fmt.Sprint(n), "value")
					if err := db.Barrier(); err != nil {
						b.Fatal(err)
					}
				}
				return
			}
			var n atomic.Int64
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					put(b, db, fmt.Sprint(n.Add(1)), "value")
					if err := db.Barrier(); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}
