package sandbox

import "golang.org/x/sys/unix"

// callTables are those of the architectures that programs here may be of, our own first. The numbers of the others are the kernel's
// (arch/arm/tools/syscall.tbl).
var callTables = []callTable{
	{
		arch:    unix.AUDIT_ARCH_AARCH64,
		ioctl:   unix.SYS_IOCTL,
		prlimit: unix.SYS_PRLIMIT64,
		tight:   []uint32{unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_OPEN_BY_HANDLE_AT},
		missing: []uint32{unix.SYS_IO_URING_SETUP, unix.SYS_USERFAULTFD},
		watched: append([]watched{{unix.SYS_RENAMEAT, moves, -1, [][2]int{{0, 1}, {2, 3}}}}, watchedEverywhere...),
	},
	{
		arch:    unix.AUDIT_ARCH_ARM,
		ioctl:   54,
		prlimit: 369,
		tight:   []uint32{311, 309, 310, 386, 364, 371},
		missing: []uint32{425, 388},
	},
}
