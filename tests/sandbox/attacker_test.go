package sandbox

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// attackerName is what this test's binary is called when it attacks.
const attackerName = "rewindfs-attacker"

// attack does with system calls what no shell can. What succeeds prints done.
func attack(args []string) int {
	runtime.LockOSThread()
	name, arg := args[0], append(args[1:], "", "")
	fn, known := attacks[name]
	if !known {
		fmt.Println("DONE nothing: there is no attack", name) // an error of the test must not look like a refusal
		return 2
	}
	if err := fn(arg); err != nil {
		fmt.Println(name+":", err)
		return 1
	}
	fmt.Println(done)
	return 0
}

var attacks = map[string]func(arg []string) error{
	"open": func(arg []string) error { // for writing, and no more
		fd, err := unix.Open(arg[0], unix.O_WRONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
		if err == nil {
			unix.Close(fd)
		}
		return err
	},
	"truncate":  func(arg []string) error { return unix.Truncate(arg[0], 0) },
	"setxattr":  func(arg []string) error { return unix.Setxattr(arg[0], "user.x", []byte("x"), 0) },
	"bind":      func(arg []string) error { return unix.Mount(arg[0], arg[1], "", unix.MS_BIND, "") },
	"remount":   func(arg []string) error { return unix.Mount("", arg[0], "", unix.MS_REMOUNT|unix.MS_BIND, "") },
	"umount":    func(arg []string) error { return unix.Unmount(arg[0], unix.MNT_DETACH) },
	"tmpfs":     func(arg []string) error { return unix.Mount("tmpfs", arg[0], "tmpfs", 0, "") },
	"pivot":     func(arg []string) error { return unix.PivotRoot(arg[0], arg[0]) },
	"open-tree": openTree,
	"chroot":    escapeChroot,
	"setns":     setns,
	"ptrace":    func(arg []string) error { return unix.PtraceSeize(atoi(arg[0])) },
	"peek":      peek,
	"take-fd":   takeFD,
	"prlimit": func(arg []string) error {
		return unix.Prlimit(atoi(arg[0]), unix.RLIMIT_CPU, &unix.Rlimit{Cur: 1, Max: 1}, nil)
	},
	"keyring":     keyring,
	"uring":       func([]string) error { return call(unix.SYS_IO_URING_SETUP, 8, uintptr(unsafe.Pointer(&[120]byte{}))) },
	"bpf":         func([]string) error { return call(unix.SYS_BPF, 0, 0, 0) },
	"handle":      openByHandle,
	"mknod":       mknod,
	"dial":        dial,
	"fork-bomb":   forkBomb,
	"memory-bomb": memoryBomb,
	"type":        func([]string) error { return typeInto(unix.TIOCSTI) },
	"type-high":   func([]string) error { return typeInto(unix.TIOCSTI | 1<<32) },
	"type-linux":  func([]string) error { return typeInto(0x541c) },
	"caps":        caps,
	"priv":        func([]string) error { return errIf(prctl(unix.PR_GET_NO_NEW_PRIVS) == 1, "no_new_privs is set") },
}

func call(nr uintptr, args ...uintptr) error {
	args = append(args, 0, 0, 0)
	if _, _, errno := unix.Syscall(nr, args[0], args[1], args[2]); errno != 0 {
		return errno
	}
	return nil
}

func atoi(s string) int { n, _ := strconv.Atoi(s); return n }

func errIf(refused bool, why string) error {
	if refused {
		return errors.New(why)
	}
	return nil
}

func prctl(option int) uintptr {
	v, _, _ := unix.Syscall(unix.SYS_PRCTL, uintptr(option), 0, 0)
	return v
}

// openTree takes a mount off read-only by way of a detached copy.
func openTree(arg []string) error {
	fd, err := unix.OpenTree(unix.AT_FDCWD, arg[0], unix.OPEN_TREE_CLONE|unix.AT_RECURSIVE)
	if err != nil {
		return err
	}
	return unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY})
}

// escapeChroot leaves a chroot by a directory that is open outside of it, and writes where it comes out.
func escapeChroot(arg []string) error {
	if err := os.Mkdir("jail", 0o755); err != nil {
		return err
	}
	if err := unix.Chroot("jail"); err != nil {
		return err
	}
	for range 64 {
		if err := os.Chdir(".."); err != nil {
			return err
		}
	}
	return os.WriteFile("."+arg[0], []byte("from a jail\n"), 0o644)
}

// setns goes into a namespace of another process.
func setns(arg []string) error {
	fd, err := unix.Open("/proc/"+arg[0]+"/ns/"+arg[1], unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	if arg[1] == "mnt" {
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return err
		}
	}
	return unix.Setns(fd, 0)
}

// peek reads what another process was started with from its memory.
func peek(arg []string) error {
	maps, err := os.ReadFile("/proc/" + arg[0] + "/maps")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(maps)) {
		if !strings.Contains(line, "[stack]") {
			continue
		}
		var from, to uintptr
		fmt.Sscanf(line, "%x-%x", &from, &to)
		buf := make([]byte, to-from)
		local := []unix.Iovec{{Base: &buf[0], Len: uint64(len(buf))}}
		_, err := unix.ProcessVMReadv(atoi(arg[0]), local, []unix.RemoteIovec{{Base: from, Len: len(buf)}}, 0)
		if err == nil {
			fmt.Printf("%q\n", buf)
		}
		return err
	}
	return errors.New("there is no stack")
}

// takeFD takes a descriptor out of another process.
func takeFD(arg []string) error {
	pid, err := unix.PidfdOpen(atoi(arg[0]), 0)
	if err != nil {
		return err
	}
	_, err = unix.PidfdGetfd(pid, 0, 0)
	return err
}

func keyring([]string) error {
	_, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_USER_KEYRING, true)
	return err
}

// openByHandle opens a file without a path to it.
func openByHandle(arg []string) error {
	handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, arg[0], 0)
	if err != nil {
		return err
	}
	mount, err := unix.Open("/", unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	_, err = unix.OpenByHandleAt(mount, handle, unix.O_WRONLY)
	return err
}

// mknod makes a door to the disk that a directory is on, and opens it.
func mknod(arg []string) error {
	var st unix.Stat_t
	if err := unix.Stat(arg[0], &st); err != nil {
		return err
	}
	if err := unix.Mknod("disk", unix.S_IFBLK|0o600, int(st.Dev)); err != nil {
		return err
	}
	_, err := unix.Open("disk", unix.O_RDONLY, 0)
	return err
}

// dial reaches a server that says something.
func dial(arg []string) error {
	c, err := net.DialTimeout(arg[0], arg[1], 5*time.Second)
	if err != nil {
		return err
	}
	if arg[0] == "udp" {
		c.SetReadDeadline(time.Now().Add(2 * time.Second)) // nobody says that nobody is there
		c.Write([]byte("x"))
	}
	_, err = c.Read(make([]byte, 1))
	return err
}

// forkBomb starts more processes than it is allowed.
func forkBomb(arg []string) error {
	var all []*exec.Cmd
	defer func() {
		for _, c := range all {
			c.Process.Kill()
			c.Wait()
		}
	}()
	for range atoi(arg[0]) {
		c := exec.Command("sleep", "100")
		if err := c.Start(); err != nil {
			return err
		}
		all = append(all, c)
	}
	return nil
}

// memoryBomb fills so many MiB of memory.
func memoryBomb(arg []string) error {
	size := atoi(arg[0]) << 20
	m, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	for i := 0; i < size; i += 4096 {
		m[i] = 1
	}
	return nil
}

// typeInto puts a character into the terminal that is standard input, as if the user had typed it.
func typeInto(request uintptr) error {
	c := [2]byte{'x'}
	if request == 0x541c {
		c[0] = 3 // paste the selection
	}
	return call(unix.SYS_IOCTL, 0, request, uintptr(unsafe.Pointer(&c)))
}

// caps succeeds if there are capabilities, or might be after an exec of something.
func caps([]string) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var now [2]unix.CapUserData
	if err := unix.Capget(&header, &now[0]); err != nil {
		return err
	}
	bounding, _, _ := unix.Syscall(unix.SYS_PRCTL, unix.PR_CAPBSET_READ, unix.CAP_SYS_ADMIN, 0)
	return errIf(now[0].Permitted|now[1].Permitted == 0 && bounding == 0, "there are none")
}
