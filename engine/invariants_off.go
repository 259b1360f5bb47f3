//go:build !invariants

package engine

// invariants switches on assertions that are too dear for production.
const invariants = false

func assert(bool, string, ...any) {}
