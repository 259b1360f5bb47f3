// Package oracle compares the engine's strict profile with implementations of
// LevelDB that share no code with it: goleveldb, and LevelDB itself through
// python3-plyvel. Databases are passed back and forth between them, tables are
// compared byte for byte. It is a module of its own so that the store doesn't
// depend on its oracles; run it with go test in this directory.
package oracle
