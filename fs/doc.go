// Package fs is the FUSE face of a tree: it turns kernel requests into calls of
// layers, and movements of the head into notices that void the kernel's caches.
// What a request means for names, bytes and times is decided in layers; how
// requests arrive is the business of fs/transport.
//
// # What the kernel may remember
//
// Everything, for ever: names (absent ones too), attributes, data, listings and link
// targets. Nobody changes the tree but through the mount, so the daemon only has to
// speak up when the head moves ([Mount.Notify]), when a page written through a
// mapping moved a file's times, or when session wrote a file itself.
//
// There is no OPEN, OPENDIR, FLUSH, ACCESS or CREATE: they answer ENOSYS once and the
// kernel does without. These and what go-fuse leaves out (POLL, BMAP, SYNCFS,
// COPY_FILE_RANGE_64) are the only uses of ENOSYS, which the kernel remembers for the
// life of the mount; no error of ours becomes it (errno.go).
//
// # Node ids
//
//	bit 63     a read-only view: bits 48..62 number it, see rewind.go
//	bits 48..62 otherwise the incarnation of a regular file
//	bits 0..47  inode number
//
// No open means no handle, so a descriptor from before a rollback looks like one
// from after it. That is why a regular file that a rollback changes gets a new
// node id (its st_ino stays): writes that still come with the old one are
// refused with ESTALE and dirty pages of old mappings are dropped, while reads through it show
// the file as it now is.
//
// # Locks
//
//	session's checkpoint mutex
//	  FS.gate      data changes hold it for reading, a move of the head for writing
//	    Tree.mu    (layers)
//	      incarnations.mu, views.mu
//	  voider.mu, syncGroup.mu, aclCache.mu  leaves; nothing is called with them held
//
// Notifications go out, and Barrier uses the mount itself, with none of these held. The one sent by a handler is
// to an old incarnation of the file it writes, which is another inode to the kernel.
package fs
