package fs

import (
	"encoding/binary"
	"errors"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/layers"
)

// The kernel checks permissions against ACLs, and hands us the attribute values in
// their on-disk form: a version and entries of tag, permissions and id
// (include/uapi/linux/posix_acl_xattr.h). Keeping mode and ACL in step is ours.

const (
	aclVersion   = 2
	aclHead      = 4
	aclEntrySize = 8
)

// Tags of ACL entries.
const (
	aclUserObj  = 0x01
	aclUser     = 0x02
	aclGroupObj = 0x04
	aclGroup    = 0x08
	aclMask     = 0x10
	aclOther    = 0x20
)

type aclEntry struct {
	tag, perm uint16
	id        uint32
}

type acl []aclEntry

// parseACL decodes an attribute value. EINVAL.
func parseACL(v []byte) (acl, error) {
	if len(v) < aclHead || (len(v)-aclHead)%aclEntrySize != 0 || binary.LittleEndian.Uint32(v) != aclVersion {
		return nil, unix.EINVAL
	}
	a := make(acl, 0, (len(v)-aclHead)/aclEntrySize)
	for v = v[aclHead:]; len(v) > 0; v = v[aclEntrySize:] {
		a = append(a, aclEntry{
			tag: binary.LittleEndian.Uint16(v), perm: binary.LittleEndian.Uint16(v[2:]) & 7,
			id: binary.LittleEndian.Uint32(v[4:]),
		})
	}
	return a, nil
}

func (a acl) encode() []byte {
	v := binary.LittleEndian.AppendUint32(nil, aclVersion)
	for _, e := range a {
		v = binary.LittleEndian.AppendUint16(v, e.tag)
		v = binary.LittleEndian.AppendUint16(v, e.perm)
		v = binary.LittleEndian.AppendUint32(v, e.id)
	}
	return v
}

// class returns the entry that the mode's bits for user, group or other stand for;
// for group that is the mask, if there is one.
func (a acl) class(tag uint16) *aclEntry {
	var found *aclEntry
	for i := range a {
		if a[i].tag == tag || (tag == aclGroupObj && a[i].tag == aclMask) {
			found = &a[i] // the mask comes behind the group
		}
	}
	return found
}

var aclClasses = [...]struct {
	tag   uint16
	shift uint
}{{aclUserObj, 6}, {aclGroupObj, 3}, {aclOther, 0}}

// mode returns the permission bits that a stands for, and whether it says nothing beyond them.
func (a acl) mode() (bits uint32, plain bool) {
	plain = true
	for _, c := range aclClasses {
		if e := a.class(c.tag); e != nil {
			bits |= uint32(e.perm) << c.shift
		}
	}
	for _, e := range a {
		if e.tag == aclUser || e.tag == aclGroup || e.tag == aclMask {
			plain = false
		}
	}
	return bits, plain
}

// chmod makes a say what the permission bits say.
func (a acl) chmod(bits uint32) {
	for _, c := range aclClasses {
		if e := a.class(c.tag); e != nil {
			e.perm = uint16(bits >> c.shift & 7)
		}
	}
}

// inherit is what a, a directory's default ACL, makes of the mode that a new object
// was asked for: its mode and its ACLs.
func (a acl) inherit(mode uint32) (uint32, map[string][]byte) {
	own := append(acl{}, a...)
	for _, c := range aclClasses {
		if e := own.class(c.tag); e != nil {
			e.perm &= uint16(mode >> c.shift & 7)
		}
	}
	bits, plain := own.mode()
	mode = mode&^0o777 | bits
	xattrs := map[string][]byte{}
	if !plain {
		xattrs[xattrAccess] = own.encode()
	}
	if mode&unix.S_IFMT == unix.S_IFDIR {
		xattrs[xattrDefault] = a.encode()
	}
	return mode, xattrs
}

// accessACL returns the access ACL of ino, nil if it has none.
func (f *FS) accessACL(ino layers.Ino) (acl, error) {
	v, err := f.branch.Getxattr(ino, xattrAccess)
	if noXattr(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parseACL(v)
}

func noXattr(err error) bool {
	return errors.Is(err, unix.ENODATA) || errors.Is(err, unix.EOPNOTSUPP)
}

// setAccessACL sets the ACL and with it the mode. An ACL that says no more than a mode becomes one.
func (f *FS) setAccessACL(ino layers.Ino, val []byte, killSgid bool) error {
	a, err := parseACL(val)
	if err != nil {
		return err
	}
	attr, err := f.branch.Getattr(ino)
	if err != nil {
		return err
	}
	bits, plain := a.mode()
	mode := attr.Mode&0o7000 | bits
	if killSgid {
		mode &^= unix.S_ISGID
	}
	if plain {
		val = nil
	}
	_, err = f.branch.Setattr(ino, layers.SetAttr{Mode: &mode, Xattrs: map[string][]byte{xattrAccess: val}})
	return err
}

// chmodACL returns the change of the access ACL that goes with a new mode, if ino has one.
func (f *FS) chmodACL(ino layers.Ino, mode uint32) (map[string][]byte, error) {
	a, err := f.accessACL(ino)
	if a == nil || err != nil {
		return nil, err
	}
	a.chmod(mode)
	return map[string][]byte{xattrAccess: a.encode()}, nil
}

// aclCache keeps the default ACLs of directories that things are made in.
type aclCache struct {
	mu sync.RWMutex
	m  map[layers.Ino]acl // guarded by mu; nil ACL: there is none
	// gen rises with each drop, so that a value read before one is not kept after it.
	gen uint64 // guarded by mu
}

const maxACLs = 1 << 14

// defaultACL returns the default ACL of a directory, nil if it has none.
func (f *FS) defaultACL(dir layers.Ino) (acl, error) {
	c := &f.acls
	c.mu.RLock()
	a, ok := c.m[dir]
	gen := c.gen
	c.mu.RUnlock()
	if ok {
		return a, nil
	}
	v, err := f.branch.Getxattr(dir, xattrDefault)
	if err != nil && !noXattr(err) {
		return nil, err
	}
	if err == nil {
		if a, err = parseACL(v); err != nil {
			return nil, err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gen == gen {
		if c.m == nil || len(c.m) >= maxACLs {
			c.m = map[layers.Ino]acl{}
		}
		c.m[dir] = a
	}
	return a, nil
}

func (c *aclCache) drop(dir layers.Ino) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.m, dir)
	c.gen++
}

// clear is for a move of the head.
func (c *aclCache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.m)
	c.gen++
}
