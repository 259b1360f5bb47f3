// Package simdisk is a uring.Disk in memory that can lose power.
//
// # What is kept
//
// Every file has two images: the volatile one, which reads see, and the durable
// one, which is on the medium. Between them stands the list of the changes not
// yet synced. Every directory likewise.
//
//   - Datasync and Sync of a file make its data, size and allocation durable,
//     never its name.
//   - SyncDir makes the entries of that one directory durable: creations,
//     removals and renames into, within and out of it. A rename is atomic. A
//     directory's own entry belongs to its parent.
//   - Anything else may or may not reach the medium, by the crash mode.
//
// # What a crash may leave (Crash)
//
// Data reach the medium in sectors of 512 bytes, in any order, each in any
// version that the volatile sector had since the last sync: a sector that holds
// a later write also holds the earlier ones of the same sector, as the page
// cache has it; two sectors are independent. Sizes, truncations and allocations
// of one file keep their order, but no order towards its data: a size may come
// without data (zeros) and data without its size (nothing). Directory changes
// are kept or lost one by one, except that one that reuses a name implies the
// earlier ones of that name. Files are independent of each other, except in
// mode Prefix.
//
// # Errors
//
// Every operation is counted and shown to the hook of OnOp before it has any
// effect; FailAt fails one by its index. A failed sync marks the data clean, as
// ext4, XFS and Btrfs do: a later successful sync does not write them.
package simdisk
