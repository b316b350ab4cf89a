// Package layers is the versioned tree: inodes, names, extents and extended
// attributes, each with one version per layer that changed it, over a read-only
// base directory.
//
// A [Tree] is one store over one base. A [View] shows the tree as of one layer
// and is read-only; a [Branch] is the view of a head and takes writes. Nothing
// here knows about FUSE: tests drive it without a mount.
//
// Errors are (or wrap) [syscall.Errno] values where POSIX names one.
package layers
