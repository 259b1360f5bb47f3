// Package lanes decides where work runs.
package lanes
