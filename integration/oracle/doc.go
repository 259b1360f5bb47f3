// Package oracle compares the engine's strict profile with goleveldb, an
// implementation of LevelDB that shares no code with it. It is a module of its
// own so that the store doesn't depend on its oracle.
package oracle
