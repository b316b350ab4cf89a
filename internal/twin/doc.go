// Package twin runs one sequence of operations on a file system with history and
// on a plain directory, and says where they part.
//
// The model of a checkpoint is a copy of the plain directory. After a rollback
// the subject must show every path, content, mode, owner, time (ctime too), link
// count, inode number and attribute as at the checkpoint, also through what a
// program held open. Test support only.
package twin
