//go:build !invariants

package engine

// invariants guards assertions that are too dear for production.
const invariants = false

func assert(bool, string, ...any) {}
