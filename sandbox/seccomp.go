package sandbox

import (
	"encoding/binary"
	"unsafe"

	"golang.org/x/sys/unix"
)

// callTable is what the filter knows of an architecture.
type callTable struct {
	arch uint32 // AUDIT_ARCH_…
	// limit is the first number that is of another table under the same arch (x32), 0 for none.
	limit uint32
	ioctl uint32
	// prlimit could bound another process to death, which Landlock does not refuse. Programs bound themselves, as 0.
	prlimit uint32
	// tight are refused to tight kinds with EPERM, missing with ENOSYS, upon which programs go without.
	tight, missing []uint32
	watched        []watched
}

// watched is a call that may change a file, and where it says so.
type watched struct {
	nr uint32
	op op
	// flags is the argument with open(2)'s flags, -1 for none.
	flags int
	// names are pairs of arguments: a directory's descriptor (-1: the working directory) and a path.
	names [][2]int
}

// op is how a call changes what a name leads to.
type op int

const (
	opens   op = iota // for writing, as the flags say
	makes             // a name that must not be there yet
	removes           // a name
	moves             // the first name to the second
	changes           // an attribute, of what symlinks lead to
	marks             // an attribute, of a symlink itself
)

// writing are the flags of open(2) that say that a file will be changed.
const writing = unix.O_WRONLY | unix.O_RDWR | unix.O_CREAT | unix.O_TRUNC

const cwd = -1

// Requests of ioctl(2) that put input into a terminal: the shell that started us would run it (CVE-2017-5226).
// Only the low half counts: the kernel looks at nothing else (CVE-2019-10063).
var typing = []uint32{unix.TIOCSTI, tioclinux}

const tioclinux = 0x541c

// Offsets in struct seccomp_data.
const (
	offNR   = 0
	offArch = 4
	offArgs = 16
)

func allow() unix.SockFilter              { return stmt(unix.SECCOMP_RET_ALLOW) }
func refuse(e unix.Errno) unix.SockFilter { return stmt(unix.SECCOMP_RET_ERRNO | uint32(e)) }

func stmt(ret uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: ret}
}

func load(off uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: off}
}

// when is a block that is skipped unless the value loaded compares so with k.
func when(jump uint16, k uint32, then ...unix.SockFilter) []unix.SockFilter {
	return append([]unix.SockFilter{{Code: unix.BPF_JMP | jump | unix.BPF_K, K: k, Jf: uint8(len(then))}}, then...)
}

// argument is the offset of the low half of an argument.
func argument(i int) uint32 {
	off := uint32(offArgs + 8*i)
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
		off += 4
	}
	return off
}

// program is the filter, nil where this architecture has no table.
func program(tight, watch bool) []unix.SockFilter {
	var prog []unix.SockFilter
	for i, table := range callTables {
		prog = append(prog, load(offArch))
		block := table.block(tight, watch && i == 0) // of other architectures nobody reads arguments
		// A block may be longer than a conditional jump reaches.
		prog = append(prog, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: table.arch, Jt: 1})
		prog = append(prog, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA, K: uint32(len(block))})
		prog = append(prog, block...)
	}
	if prog == nil {
		return nil
	}
	return append(prog, refuse(unix.ENOSYS)) // calls of an architecture that nothing is known of
}

func (t *callTable) block(tight, watch bool) []unix.SockFilter {
	b := []unix.SockFilter{load(offNR)}
	if t.limit != 0 {
		b = append(b, when(unix.BPF_JGE, t.limit, refuse(unix.ENOSYS))...)
	}
	ioctl := []unix.SockFilter{load(argument(1))}
	for _, request := range typing {
		ioctl = append(ioctl, when(unix.BPF_JEQ, request, refuse(unix.EPERM))...)
	}
	b = append(b, when(unix.BPF_JEQ, t.ioctl, append(ioctl, allow())...)...)
	bound := append([]unix.SockFilter{load(argument(0))}, when(unix.BPF_JEQ, 0, allow())...)
	bound = append(append(bound, load(argument(2))), when(unix.BPF_JEQ, 0, allow())...) // which only asks
	b = append(b, when(unix.BPF_JEQ, t.prlimit, append(bound, refuse(unix.EPERM))...)...)
	if tight {
		for _, nr := range t.tight {
			b = append(b, when(unix.BPF_JEQ, nr, refuse(unix.EPERM))...)
		}
		for _, nr := range t.missing {
			b = append(b, when(unix.BPF_JEQ, nr, refuse(unix.ENOSYS))...)
		}
	}
	if watch {
		for _, w := range t.watched {
			notify := []unix.SockFilter{stmt(unix.SECCOMP_RET_USER_NOTIF)}
			if w.flags >= 0 {
				notify = append([]unix.SockFilter{load(argument(w.flags))}, when(unix.BPF_JSET, writing, notify...)...)
				notify = append(notify, allow())
			}
			b = append(b, when(unix.BPF_JEQ, w.nr, notify...)...)
		}
	}
	return append(b, allow())
}

// install puts a filter before all system calls of the calling thread.
func install(prog []unix.SockFilter, flags uintptr) (fd int, err error) {
	p := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	n, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&p)))
	if errno != 0 {
		return -1, errno
	}
	return int(n), nil
}

// watchedEverywhere are the calls that each architecture has.
var watchedEverywhere = []watched{
	{unix.SYS_OPENAT, opens, 2, [][2]int{{0, 1}}},
	{unix.SYS_OPENAT2, opens, -1, [][2]int{{0, 1}}}, // its flags are in memory
	{unix.SYS_MKDIRAT, makes, -1, [][2]int{{0, 1}}},
	{unix.SYS_MKNODAT, makes, -1, [][2]int{{0, 1}}},
	{unix.SYS_SYMLINKAT, makes, -1, [][2]int{{1, 2}}},
	{unix.SYS_LINKAT, makes, -1, [][2]int{{2, 3}}},
	{unix.SYS_UNLINKAT, removes, -1, [][2]int{{0, 1}}},
	{unix.SYS_RENAMEAT2, moves, -1, [][2]int{{0, 1}, {2, 3}}},
	{unix.SYS_TRUNCATE, changes, -1, [][2]int{{cwd, 0}}},
	{unix.SYS_FCHMODAT, changes, -1, [][2]int{{0, 1}}},
	{unix.SYS_FCHMODAT2, changes, -1, [][2]int{{0, 1}}},
	{unix.SYS_FCHOWNAT, marks, -1, [][2]int{{0, 1}}},
	{unix.SYS_UTIMENSAT, changes, -1, [][2]int{{0, 1}}},
	{unix.SYS_SETXATTR, changes, -1, [][2]int{{cwd, 0}}},
	{unix.SYS_LSETXATTR, marks, -1, [][2]int{{cwd, 0}}},
	{unix.SYS_REMOVEXATTR, changes, -1, [][2]int{{cwd, 0}}},
	{unix.SYS_LREMOVEXATTR, marks, -1, [][2]int{{cwd, 0}}},
}
