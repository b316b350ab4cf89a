package transport

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
)

// Problem says what stands in the way of a mount, so that a program can act on it.
type Problem string

// What can stand in the way of a mount.
const (
	NoDevice         Problem = "no_device"          // /dev/fuse does not exist
	DeviceDenied     Problem = "device_denied"      // /dev/fuse may not be opened
	NoHelper         Problem = "no_helper"          // no right to mount, and no fusermount3
	AllowOtherDenied Problem = "allow_other_denied" // user_allow_other is missing in /etc/fuse.conf
	BadMountpoint    Problem = "bad_mountpoint"     // missing, not a directory, or a dead mount
	MountpointDenied Problem = "mountpoint_denied"  // not the user's own directory
	NotPermitted     Problem = "not_permitted"      // the kernel or a container forbids mounting
	TooManyMounts    Problem = "too_many_mounts"    // mount_max in /etc/fuse.conf
	NoUserName       Problem = "no_user_name"       // fusermount3 wants the user in /etc/passwd
	MountFailed      Problem = "mount_failed"       // anything else
)

var hints = map[Problem]string{
	NoDevice:         "load the module with `modprobe fuse`; in a container add `--device /dev/fuse`",
	DeviceDenied:     "as root: `chmod 0666 /dev/fuse`; in a container add `--device /dev/fuse`",
	NoHelper:         "install the package fuse3 (`apt install fuse3`), or mount as root or within `unshare -Urm`",
	AllowOtherDenied: "add the line `user_allow_other` to /etc/fuse.conf, or mount without --allow-other",
	BadMountpoint:    "give an existing directory; `fusermount3 -uz MOUNTPOINT` clears one that a dead daemon left behind",
	MountpointDenied: "give a mount point that you own and may write to",
	NotPermitted:     "in a container add `--device /dev/fuse --cap-add SYS_ADMIN --security-opt apparmor=unconfined`",
	NoUserName:       "add the user to /etc/passwd, or mount as root or within `unshare -Urm`",
	TooManyMounts:    "raise `mount_max` in /etc/fuse.conf, or unmount something",
}

// MountError is the error of [Mount].
type MountError struct {
	Problem    Problem
	Mountpoint string
	Err        error
}

// Hint says what mends the problem; it is empty when nothing general does.
func (e *MountError) Hint() string { return hints[e.Problem] }

func (e *MountError) Error() string {
	msg := fmt.Sprintf("mount on %s: %v", e.Mountpoint, e.Err)
	if h := e.Hint(); h != "" {
		msg += " (" + h + ")"
	}
	return msg
}

func (e *MountError) Unwrap() error { return e.Err }

// helperProblem sorts what fusermount3 printed. Its messages are not translated.
func helperProblem(stderr string) Problem {
	for _, m := range []struct {
		text    string
		problem Problem
	}{
		{"user_allow_other", AllowOtherDenied},
		{"fuse device not found", NoDevice},
		{"/dev/fuse: No such file", NoDevice},
		{"/dev/fuse: No such device", NoDevice},
		{"/dev/fuse: Permission denied", DeviceDenied},
		{"/dev/fuse: Operation not permitted", DeviceDenied},
		{"could not determine username", NoUserName},
		{"too many FUSE filesystems", TooManyMounts},
		{"no write access to mountpoint", MountpointDenied},
		{"not owned by user", MountpointDenied},
		{"bad mount point", BadMountpoint},
		{"failed to access mountpoint", BadMountpoint},
		{"failed to chdir to mountpoint", BadMountpoint},
		{"mount failed: Operation not permitted", NotPermitted},
		{"mount failed: Permission denied", NotPermitted},
	} {
		if strings.Contains(stderr, m.text) {
			return m.problem
		}
	}
	return MountFailed
}

// deviceProblem sorts the error of opening /dev/fuse.
func deviceProblem(err error) Problem {
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ENODEV), errors.Is(err, syscall.ENXIO):
		return NoDevice
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return DeviceDenied
	}
	return MountFailed
}
