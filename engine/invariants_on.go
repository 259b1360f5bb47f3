//go:build invariants

package engine

import "fmt"

// invariants guards assertions that are too dear for production.
const invariants = true

// assert panics unless ok: a broken invariant is a bug of this package.
func assert(ok bool, format string, args ...any) {
	if !ok {
		panic("engine: " + fmt.Sprintf(format, args...))
	}
}
