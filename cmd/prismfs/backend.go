package main

import "log"

// backend is what the commands need of the layers below. Its one real
// implementation is storeBackend; tests of the daemon use another, without a
// kernel.
//
//   - Errors are failures with their exit codes, except that what open and
//     check say of a locked store satisfies isLocked.
type backend interface {
	mkfs(dir string, s *mkfsSettings) error
	isStore(dir string) error
	open(dir string, s *mountSettings, l *log.Logger) (volume, error)
	isLocked(err error) bool
	mount(v volume, store, mnt string, s *mountSettings, l *log.Logger) (mountServer, error)
	check(dir string, report func(problem string)) (details any, err error)
}
