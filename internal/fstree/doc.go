// Package fstree describes a directory tree completely, so that tests can say
// "this tree is that tree" and print what differs.
//
// [Scan] reads a tree through the kernel; tests that have no mount build a
// [Tree] themselves. [Diff] compares two of them. Test support only: nothing
// outside of tests imports it.
package fstree
