package simdisk_test

import (
	"testing"

	"prismfs/uring"
	"prismfs/uring/simdisk"
	"prismfs/uring/uringtest"
)

func TestConformance(t *testing.T) {
	uringtest.Run(t, func(t *testing.T) uring.Disk { return simdisk.New(1) })
}

// A crashed disk is a disk like any other.
func TestConformanceAfterCrash(t *testing.T) {
	uringtest.Run(t, func(t *testing.T) uring.Disk { return simdisk.New(1).Crash(nil, simdisk.LoseAll) })
}
