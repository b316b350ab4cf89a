package transport

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	devFuse = "/dev/fuse"
	subtype = "rewindfs"
	// FSType is the type that a mount has in /proc/mounts.
	FSType = "fuse." + subtype
)

// openMount mounts on dir and returns the descriptor that requests come from.
// The kernel is tried first: it lets root and the owner of a user namespace
// mount; fusermount3 helps everybody else.
func openMount(dir string, o *Options) (int, error) {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return -1, &MountError{BadMountpoint, dir, err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return -1, &MountError{BadMountpoint, dir, unix.ENOTDIR}
	}
	fd, direct := mountDirect(dir, st.Mode&unix.S_IFMT, o)
	if direct == nil || !direct.helperMayHelp() {
		return fd, direct.orNil()
	}
	bin := helper()
	if bin == "" {
		if direct.Problem == NotPermitted {
			direct.Problem = NoHelper
		}
		return -1, direct
	}
	return mountHelper(bin, dir, o)
}

// orNil avoids the nil pointer in a non-nil interface.
func (e *MountError) orNil() error {
	if e == nil {
		return nil
	}
	return e
}

// helperMayHelp reports whether fusermount3, which runs as root, may succeed.
func (e *MountError) helperMayHelp() bool {
	return e.Problem == NotPermitted || e.Problem == DeviceDenied
}

func mountDirect(dir string, rootmode uint32, o *Options) (int, *MountError) {
	fd, err := unix.Open(devFuse, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &MountError{deviceProblem(err), dir, fmt.Errorf("open %s: %w", devFuse, err)}
	}
	// user_id and group_id must be mapped in the user namespace; our own are.
	data := fmt.Sprintf("fd=%d,rootmode=%o,user_id=%d,group_id=%d,max_read=%d,default_permissions",
		fd, rootmode, os.Geteuid(), os.Getegid(), maxIO)
	if o.AllowOther {
		data += ",allow_other"
	}
	if err := unix.Mount(o.FSName, dir, FSType, unix.MS_NOSUID|unix.MS_NODEV, data); err != nil {
		unix.Close(fd)
		p := MountFailed
		switch {
		case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
			p = NotPermitted
		case errors.Is(err, unix.ENODEV):
			p = NoDevice
		case errors.Is(err, unix.ENOTCONN), errors.Is(err, unix.ENOENT):
			p = BadMountpoint
		}
		return -1, &MountError{p, dir, err}
	}
	return fd, nil
}

// helper finds fusermount3 or fusermount; PATH may be empty in a service.
func helper() string {
	for _, name := range []string{"fusermount3", "fusermount"} {
		for _, dir := range []string{"", "/usr/bin", "/bin"} {
			if p, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
				return p
			}
		}
	}
	return ""
}

// mountHelper has bin mount and pass the descriptor back over a socket.
func mountHelper(bin, dir string, o *Options) (int, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, &MountError{MountFailed, dir, fmt.Errorf("socketpair: %w", err)}
	}
	defer unix.Close(pair[0])
	remote := os.NewFile(uintptr(pair[1]), "fusermount")
	opts := []string{"nosuid", "nodev", "default_permissions", fmt.Sprintf("max_read=%d", maxIO),
		"fsname=" + escapeOption(o.FSName), "subtype=" + subtype}
	if o.AllowOther {
		opts = append(opts, "allow_other")
	}
	var stderr bytes.Buffer
	cmd := exec.Command(bin, "-o", strings.Join(opts, ","), "--", dir)
	cmd.Env = append(os.Environ(), "_FUSE_COMMFD=3", "LC_ALL=C")
	cmd.ExtraFiles = []*os.File{remote} // becomes descriptor 3
	cmd.Stderr = &stderr
	err = cmd.Run()
	remote.Close()
	if err != nil {
		text := strings.TrimSpace(stderr.String())
		return -1, &MountError{helperProblem(text), dir, fmt.Errorf("%s: %w: %s", bin, err, text)}
	}
	fd, err := receiveFD(pair[0])
	if err != nil {
		return -1, &MountError{MountFailed, dir, fmt.Errorf("get descriptor from %s: %w", bin, err)}
	}
	return fd, nil
}

// escapeOption protects the characters that mean something to fusermount3.
func escapeOption(s string) string {
	return strings.NewReplacer(`\`, `\\`, `,`, `\,`).Replace(s)
}

func receiveFD(sock int) (int, error) {
	var data [8]byte
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(sock, data[:], oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return -1, err
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return -1, err
	}
	for i := range msgs {
		if fds, err := unix.ParseUnixRights(&msgs[i]); err == nil && len(fds) == 1 {
			return fds[0], nil
		}
	}
	return -1, errors.New("no descriptor in the answer")
}

// unmount takes dir out of the namespace. lazy also detaches a mount that is in
// use: its users keep it until they are done.
func unmount(dir string, lazy bool) error {
	flags := unix.UMOUNT_NOFOLLOW
	if lazy {
		flags |= unix.MNT_DETACH
	}
	err := unix.Unmount(dir, flags)
	if !errors.Is(err, unix.EPERM) {
		return wrapUnmount(dir, err)
	}
	bin := helper()
	if bin == "" {
		return wrapUnmount(dir, err)
	}
	args := []string{"-u"}
	if lazy {
		args = append(args, "-z")
	}
	cmd := exec.Command(bin, append(args, "--", dir)...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	switch text := string(out); {
	case strings.Contains(text, "busy"):
		err = unix.EBUSY
	case strings.Contains(text, "not found in"), strings.Contains(text, "not mounted"):
		err = unix.EINVAL
	default:
		err = fmt.Errorf("%s: %w: %s", bin, err, strings.TrimSpace(text))
	}
	return wrapUnmount(dir, err)
}

func wrapUnmount(dir string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("unmount %s: %w", dir, err)
}
