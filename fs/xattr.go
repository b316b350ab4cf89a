package fs

import (
	"strings"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/layers"
)

const (
	xattrCaps    = "security.capability"
	xattrAccess  = "system.posix_acl_access"
	xattrDefault = "system.posix_acl_default"
)

// knownXattr reports whether a program may use the attribute, and else the errno: what
// ext4 knows. Who may use which of them is the kernel's to say.
func knownXattr(name string) (fuse.Status, bool) {
	switch name {
	case xattrAccess, xattrDefault:
		return fuse.OK, true
	}
	for _, ns := range []string{"user.", "trusted.", "security."} {
		switch {
		case name == ns:
			return fuse.EINVAL, false
		case strings.HasPrefix(name, ns):
			return fuse.OK, true
		}
	}
	return eopnotsupp, false
}

func (f *FS) GetXAttr(_ <-chan struct{}, h *fuse.InHeader, name string, dest []byte) (uint32, fuse.Status) {
	if st, ok := knownXattr(name); !ok {
		return 0, st
	}
	if isVirtual(h.NodeId) {
		return 0, fuse.ENODATA
	}
	p, st := f.at(h.NodeId)
	if st != fuse.OK {
		return 0, st
	}
	val, err := p.view.Getxattr(p.ino, name)
	if err != nil {
		return 0, f.status("getxattr", h.NodeId, err)
	}
	if len(val) > len(dest) {
		return uint32(len(val)), fuse.ERANGE
	}
	return uint32(copy(dest, val)), fuse.OK
}

func (f *FS) ListXAttr(_ <-chan struct{}, h *fuse.InHeader, dest []byte) (uint32, fuse.Status) {
	if isVirtual(h.NodeId) {
		return 0, fuse.OK
	}
	p, st := f.at(h.NodeId)
	if st != fuse.OK {
		return 0, st
	}
	names, err := p.view.Listxattr(p.ino)
	if err != nil {
		return 0, f.status("listxattr", h.NodeId, err)
	}
	var list []byte
	for _, n := range names {
		// As on ext4: the unprivileged do not even see the names of trusted attributes.
		if _, ok := knownXattr(n); ok && (h.Uid == 0 || !strings.HasPrefix(n, "trusted.")) {
			list = append(append(list, n...), 0)
		}
	}
	if len(list) > len(dest) {
		return uint32(len(list)), fuse.ERANGE
	}
	return uint32(copy(dest, list)), fuse.OK
}

func (f *FS) SetXAttr(_ <-chan struct{}, in *fuse.SetXAttrIn, name string, val []byte) fuse.Status {
	if st, ok := knownXattr(name); !ok {
		return st
	}
	val = append([]byte{}, val...) // the request's buffer is used again
	_, st := f.change("setxattr", in.NodeId, func(ino layers.Ino) error {
		switch name {
		case xattrAccess:
			return f.setAccessACL(ino, val, in.SetXAttrFlags&fuse.SETXATTR_ACL_KILL_SGID != 0)
		case xattrDefault:
			defer f.acls.drop(ino)
		case xattrCaps:
			defer f.noCaps.drop(ino)
		}
		return f.branch.Setxattr(ino, name, val, int(in.Flags))
	})
	return st
}

func (f *FS) RemoveXAttr(_ <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	if st, ok := knownXattr(name); !ok {
		return st
	}
	_, st := f.change("removexattr", h.NodeId, func(ino layers.Ino) error {
		if name == xattrDefault {
			defer f.acls.drop(ino)
		}
		err := f.branch.Removexattr(ino, name)
		if errno(err) == unix.ENODATA && (name == xattrAccess || name == xattrDefault) {
			return nil // removing an ACL that is not there succeeds, as on ext4
		}
		return err
	})
	return st
}

// Locks stay with the kernel, and there is no ioctl that means something to us; one
// passed on to the base's file system could do anything there.

func (f *FS) Ioctl(<-chan struct{}, *fuse.IoctlIn, []byte, *fuse.IoctlOut, []byte) fuse.Status {
	return enotty
}

func (f *FS) GetLk(<-chan struct{}, *fuse.LkIn, *fuse.LkOut) fuse.Status { return eopnotsupp }

func (f *FS) SetLk(<-chan struct{}, *fuse.LkIn) fuse.Status { return eopnotsupp }

func (f *FS) SetLkw(<-chan struct{}, *fuse.LkIn) fuse.Status { return eopnotsupp }

// What go-fuse's own server would call.

func (f *FS) String() string { return "rewindfs" }

func (f *FS) SetDebug(bool) {}

func (f *FS) Init(*fuse.Server) {}

func (f *FS) OnUnmount() {}
