package uring_test

import (
	"testing"

	"prismfs/lanes"
	"prismfs/uring"
	"prismfs/uring/uringtest"
)

func runtimeFor(t *testing.T) *lanes.Runtime {
	rt := lanes.NewRuntime(lanes.Config{})
	t.Cleanup(rt.Close)
	return rt
}

func needRing(t testing.TB) {
	t.Helper()
	if err := uring.Probe(); err != nil {
		t.Skip(err)
	}
}

func openDisk(t *testing.T, o uring.Options) uring.Disk {
	t.Helper()
	d, err := uring.Open(t.TempDir(), o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestRing(t *testing.T) {
	needRing(t)
	uringtest.Run(t, func(t *testing.T) uring.Disk {
		return openDisk(t, uring.Options{Mode: uring.RingOnly, Lanes: runtimeFor(t)})
	})
}

// The smallest ring: every queue overflows.
func TestSmallRing(t *testing.T) {
	needRing(t)
	uringtest.Run(t, func(t *testing.T) uring.Disk {
		return openDisk(t, uring.Options{Mode: uring.RingOnly, Lanes: runtimeFor(t), RingEntries: 1})
	})
}

func TestPread(t *testing.T) {
	uringtest.Run(t, func(t *testing.T) uring.Disk {
		return openDisk(t, uring.Options{Mode: uring.Pread, Lanes: runtimeFor(t)})
	})
}

func TestWithoutLanes(t *testing.T) {
	uringtest.Run(t, func(t *testing.T) uring.Disk { return openDisk(t, uring.Options{}) })
}
