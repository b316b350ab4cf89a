// Package fsops says file operations as data, so that one sequence can be run
// on several file systems and the outcomes compared.
//
// An [Op] is one operation with its arguments; a [Target] carries it out and
// answers with a [Result] that is the same on every correct file system.
// [Dir] is the target for a directory that the kernel shows: a mount or an
// ordinary one. [Gen] draws operations over the tree of fstree.MakeBase and its
// surroundings. Test support only.
package fsops
