package fs

// Promises that the compiler keeps.
var _ Handler = (*Dispatcher)(nil)
