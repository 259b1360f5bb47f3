// Package ordered keeps logs: records in one order, durable up to a known
// position.
package ordered
