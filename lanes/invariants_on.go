//go:build invariants

package lanes

// invariants switches on checks that cost microseconds per job.
const invariants = true
