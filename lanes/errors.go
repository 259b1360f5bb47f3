package lanes

import "errors"

// ErrClosed is returned for work that a lane refused because it is closing
// or closed. Refused work is untouched and still the caller's.
var ErrClosed = errors.New("lanes: closed")
