package engine_test

import (
	"fmt"

	"prismfs/engine"
	"prismfs/lanes"
	"prismfs/uring/simdisk"
)

func Example() {
	l := lanes.NewRuntime(lanes.Config{})
	defer l.Close()
	db, err := engine.Open(engine.Options{
		Disk: simdisk.New(1), Dir: "db", Lanes: l, CreateIfMissing: true, MemTableSize: 1 << 20,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()

	b := engine.NewBatch()
	b.Put([]byte("apple"), []byte("red"))
	b.Put([]byte("banana"), []byte("yellow"))
	if err := db.Apply(b, engine.Block); err != nil {
		fmt.Println(err)
		return
	}
	if err := db.Barrier(); err != nil {
		fmt.Println(err)
		return
	}
	it := db.NewIter(engine.IterOptions{Lower: []byte("b")})
	defer it.Close()
	for ok := it.First(); ok; ok = it.Next() {
		fmt.Printf("%s %s\n", it.Key(), it.Value())
	}
	// Output: banana yellow
}
