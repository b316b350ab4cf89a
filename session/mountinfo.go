package session

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// fuseType is the type of our mounts in /proc/self/mountinfo.
const fuseType = "fuse.rewindfs"

// MountPoint is one of our mounts that the kernel knows.
type MountPoint struct {
	Path   string
	Source string
	Device string // major:minor of st_dev; the minor names the FUSE connection
}

// Mounts lists the rewindfs mounts of this mount namespace.
func Mounts() ([]MountPoint, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	return parseMounts(b), nil
}

// parseMounts reads mountinfo (proc_pid_mountinfo(5)).
func parseMounts(b []byte) []MountPoint {
	var out []MountPoint
	sc := bufio.NewScanner(bytes.NewReader(b))
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		f := strings.Fields(sc.Text())
		// 36 35 98:0 /root /mount/point options [optional…] - type source superoptions
		for i := 6; i+2 < len(f); i++ {
			if f[i] != "-" {
				continue
			}
			if f[i+1] == fuseType {
				out = append(out, MountPoint{Path: unescapeMount(f[4]), Source: unescapeMount(f[i+2]), Device: f[2]})
			}
			break
		}
	}
	return out
}

// unescapeMount undoes the kernel's octal escapes of blanks and backslashes.
func unescapeMount(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// deadAt reports whether path is a mount whose daemon is gone. The kernel answers
// much from its caches, also for a dead mount; statfs(2) always asks. Behind a daemon
// that lives but hangs it waits.
func deadAt(path string) bool {
	var st syscall.Statfs_t
	return daemonGone(syscall.Statfs(path, &st))
}

// daemonGone reports whether err is what a mount answers whose daemon has ended:
// ENOTCONN, or ECONNABORTED to a request that was under way in that moment.
func daemonGone(err error) bool {
	return errors.Is(err, syscall.ENOTCONN) || errors.Is(err, syscall.ECONNABORTED)
}

// Probe says whether the mount at path is "dead", "live", or "hanging" when it
// does not answer within a second.
func Probe(path string) string {
	dead := make(chan bool, 1)
	go func() { dead <- deadAt(path) }()
	select {
	case d := <-dead:
		if d {
			return StateDead
		}
		return StateLive
	case <-time.After(time.Second):
		return StateHanging
	}
}

// mounted reports whether one of our mounts is at path.
func mounted(path string) (bool, error) {
	all, err := Mounts()
	if err != nil {
		return false, err
	}
	for _, m := range all {
		if m.Path == path {
			return true, nil
		}
	}
	return false, nil
}

// maxStacked bounds how many dead mounts on one mount point are cleared.
const maxStacked = 32

// ClearDead unmounts dead mounts of ours at path, and reports whether there were any.
func ClearDead(path string) (bool, error) {
	cleared := false
	for range maxStacked {
		on, err := mounted(path)
		if err != nil || !on || Probe(path) != StateDead {
			return cleared, err
		}
		if err := detach(path); err != nil {
			return cleared, fmt.Errorf("clear the dead mount at %s: %w (by hand: fusermount3 -uz %s)", path, err, path)
		}
		cleared = true
	}
	return cleared, fmt.Errorf("clear the dead mount at %s: another one is under it each time", path)
}

// MNT_FORCE, MNT_DETACH and UMOUNT_NOFOLLOW of umount2(2).
const (
	mntForce       = 1
	mntDetach      = 2
	umountNofollow = 8
)

// detach takes the mount at path out of the tree, as root or with fusermount3.
func detach(path string) error {
	err := syscall.Unmount(path, mntDetach|umountNofollow)
	if err == nil || !errors.Is(err, syscall.EPERM) {
		return err
	}
	for _, bin := range []string{"fusermount3", "/usr/bin/fusermount3", "fusermount"} {
		out, err := exec.Command(bin, "-u", "-z", "--", path).CombinedOutput()
		if err == nil {
			return nil
		}
		if !errors.Is(err, exec.ErrNotFound) && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%s: %w: %s", bin, err, bytes.TrimSpace(out))
		}
	}
	return errors.New("not permitted, and there is no fusermount3 (install the package fuse3)")
}

// connections is where the kernel shows FUSE connections.
const connections = "/sys/fs/fuse/connections"

// CutOff ends the connection of our mount at path from outside, for a daemon that does
// not answer: whoever waits for it gets an error. Then it takes the mount away.
func CutOff(path string) error {
	all, err := Mounts()
	if err != nil {
		return err
	}
	for _, m := range all {
		if m.Path == path {
			err = abort(&m)
		}
	}
	// Detached in any case: then at least nobody new runs into it.
	if derr := detach(path); derr != nil && !errors.Is(derr, syscall.EINVAL) {
		err = errors.Join(err, fmt.Errorf("unmount %s: %w", path, derr))
	}
	return err
}

// abort ends the connection of m through the kernel's control files or, where they
// are not mounted, by a forced unmount.
func abort(m *MountPoint) error {
	_, minor, _ := strings.Cut(m.Device, ":")
	err := os.WriteFile(connections+"/"+minor+"/abort", []byte("1"), 0o200)
	if err == nil || Probe(m.Path) == StateDead {
		return nil
	}
	if ferr := syscall.Unmount(m.Path, mntForce|umountNofollow); ferr == nil || errors.Is(ferr, syscall.EBUSY) {
		return nil // aborted, even if it is too busy to go
	}
	return fmt.Errorf("end the connection of %s: %w (ending the daemon with kill -9 does it)", m.Path, err)
}
