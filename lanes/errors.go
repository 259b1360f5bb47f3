package lanes

import "errors"

var (
	// ErrClosed is returned for work that a lane refused because it is closing
	// or closed. Refused work is untouched and still the caller's.
	ErrClosed = errors.New("lanes: closed")

	// ErrStopped is what work returns that ended because its StopToken said so.
	ErrStopped = errors.New("lanes: stopped")

	// ErrOwnLane is returned to a job that would wait for work queued to the
	// lane it runs on.
	ErrOwnLane = errors.New("lanes: waiting for work of the own lane")
)
