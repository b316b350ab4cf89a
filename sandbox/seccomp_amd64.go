package sandbox

import "golang.org/x/sys/unix"

// callTables are those of the architectures that programs here may be of, our own first. The numbers of the others are the kernel's
// (arch/x86/entry/syscalls/syscall_32.tbl).
var callTables = []callTable{
	{
		arch:    unix.AUDIT_ARCH_X86_64,
		limit:   0x40000000, // x32
		ioctl:   unix.SYS_IOCTL,
		prlimit: unix.SYS_PRLIMIT64,
		tight:   []uint32{unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_OPEN_BY_HANDLE_AT},
		missing: []uint32{
			unix.SYS_IO_URING_SETUP, unix.SYS_USERFAULTFD,
		},
		watched: append([]watched{
			{unix.SYS_OPEN, opens, 1, [][2]int{{cwd, 0}}},
			{unix.SYS_CREAT, opens, -1, [][2]int{{cwd, 0}}},
			{unix.SYS_MKDIR, makes, -1, [][2]int{{cwd, 0}}},
			{unix.SYS_MKNOD, makes, -1, [][2]int{{cwd, 0}}},
			{unix.SYS_SYMLINK, makes, -1, [][2]int{{cwd, 1}}},
			{unix.SYS_LINK, makes, -1, [][2]int{{cwd, 1}}},
			{unix.SYS_UNLINK, removes, -1, [][2]int{{cwd, 0}}},
			{unix.SYS_RMDIR, removes, -1, [][2]int{{cwd, 0}}},
			{unix.SYS_RENAME, moves, -1, [][2]int{{cwd, 0}, {cwd, 1}}},
			{unix.SYS_RENAMEAT, moves, -1, [][2]int{{0, 1}, {2, 3}}},
			{unix.SYS_CHMOD, changes, -1, [][2]int{{cwd, 0}}},
			{unix.SYS_CHOWN, changes, -1, [][2]int{{cwd, 0}}},
			{unix.SYS_LCHOWN, marks, -1, [][2]int{{cwd, 0}}},
			{unix.SYS_UTIME, changes, -1, [][2]int{{cwd, 0}}},
			{unix.SYS_UTIMES, changes, -1, [][2]int{{cwd, 0}}},
			{unix.SYS_FUTIMESAT, changes, -1, [][2]int{{0, 1}}},
		}, watchedEverywhere...),
	},
	{
		arch:    unix.AUDIT_ARCH_I386,
		ioctl:   54,
		prlimit: 340,
		tight:   []uint32{288, 286, 287, 357, 336, 342},
		missing: []uint32{425, 374},
	},
}
