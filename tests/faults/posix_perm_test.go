package faults

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const alice, bob, staff = 2001, 2002, 2100

func TestPosixSetidBitsAreCleared(t *testing.T) {
	scene := func(t *testing.T, d string) {
		reset := func() { ok(t, unix.Chmod(j(d, "f"), 0o6755)) }
		mode := func(what string, want uint32) {
			t.Helper()
			is(t, "mode after "+what, stat(t, j(d, "f")).Mode&0o7777, want)
		}
		mode("nothing", 0o6755)
		ok(t, appendTo(j(d, "f")))
		mode("a write by root", 0o6755)
		as(t, alice, alice, func() {
			if err := appendTo(j(d, "f")); err != nil {
				t.Error(err)
			}
		})
		mode("a write", 0o755)
		reset()
		as(t, alice, alice, func() {
			if err := os.Truncate(j(d, "f"), 3); err != nil {
				t.Error(err)
			}
		})
		mode("truncate", 0o755)
		reset()
		as(t, alice, alice, func() {
			if err := os.WriteFile(j(d, "f"), nil, 0); err != nil {
				t.Error(err)
			}
		})
		mode("O_TRUNC", 0o755)
		reset()
		ok(t, os.Lchown(j(d, "f"), alice, bob))
		mode("chown", 0o755)
		reset()
		mode("chmod after the write", 0o6755)
		ok(t, unix.Rename(j(d, "f"), j(d, "g")))
		ok(t, unix.Rename(j(d, "g"), j(d, "f")))
		mode("rename", 0o6755)
	}
	everywhereWith(t, shared(), func(t *testing.T, d string) {
		put(t, j(d, "f"), "x")
		ok(t, os.Lchown(j(d, "f"), alice, alice))
		ok(t, unix.Chmod(j(d, "f"), 0o6755))
	}, scene)
}

func TestPosixOwnerGroupModeOfNewObjects(t *testing.T) {
	everywhereWith(t, shared(), func(t *testing.T, d string) {
		ok(t, os.Mkdir(j(d, "plain"), 0o777))
		ok(t, os.Mkdir(j(d, "setgid"), 0o777))
		ok(t, os.Lchown(j(d, "setgid"), bob, staff))
		ok(t, unix.Chmod(j(d, "setgid"), 0o2777))
	}, func(t *testing.T, d string) {
		as(t, alice, alice, func() {
			old := unix.Umask(0o027) // of the process: put back below
			defer unix.Umask(old)
			for _, dir := range []string{"plain", "setgid"} {
				if err := errors.Join(os.WriteFile(j(d, dir, "f"), nil, 0o666), os.Mkdir(j(d, dir, "sub"), 0o777),
					os.Symlink("x", j(d, dir, "sym")), unix.Mkfifo(j(d, dir, "fifo"), 0o666)); err != nil {
					t.Error(err)
				}
			}
		})
		for _, c := range []struct {
			path string
			gid  int
			mode uint32
		}{
			{"plain/f", alice, 0o640}, {"plain/sub", alice, 0o750}, {"plain/fifo", alice, 0o640}, {"plain/sym", alice, 0o777},
			{"setgid/f", staff, 0o640}, {"setgid/sub", staff, 0o2750}, {"setgid/fifo", staff, 0o640}, {"setgid/sym", staff, 0o777},
		} {
			st := stat(t, j(d, c.path))
			is(t, "uid of "+c.path, int(st.Uid), alice)
			is(t, "gid of "+c.path, int(st.Gid), c.gid)
			is(t, "mode of "+c.path, st.Mode&0o7777, c.mode)
		}
	})
}

func TestPosixStickyDirectory(t *testing.T) {
	everywhereWith(t, shared(), func(t *testing.T, d string) {
		ok(t, os.Mkdir(j(d, "tmp"), 0o777))
		ok(t, unix.Chmod(j(d, "tmp"), 0o1777))
		put(t, j(d, "tmp/alices"), "")
		ok(t, os.Lchown(j(d, "tmp/alices"), alice, alice))
	}, func(t *testing.T, d string) {
		as(t, bob, bob, func() {
			wantErr(t, unix.Unlink(j(d, "tmp/alices")), unix.EPERM)
			wantErr(t, unix.Rename(j(d, "tmp/alices"), j(d, "tmp/x")), unix.EPERM)
			if err := os.WriteFile(j(d, "tmp/bobs"), nil, 0o644); err != nil {
				t.Error(err)
			}
		})
		as(t, alice, alice, func() {
			wantErr(t, unix.Unlink(j(d, "tmp/bobs")), unix.EPERM)
			if err := unix.Unlink(j(d, "tmp/alices")); err != nil {
				t.Error(err)
			}
		})
	})
}

func TestPosixOtherUsersAndUnreadableFiles(t *testing.T) {
	everywhereWith(t, shared(), func(t *testing.T, d string) {
		ok(t, os.Mkdir(j(d, "home"), 0o755))
		ok(t, os.Lchown(j(d, "home"), alice, alice))
		for n, mode := range map[string]uint32{"none": 0, "ro": 0o444, "roots": 0o600, "mine": 0o600} {
			put(t, j(d, "home", n), n)
			ok(t, unix.Chmod(j(d, "home", n), mode))
			if n != "roots" {
				ok(t, os.Lchown(j(d, "home", n), alice, alice))
			}
		}
	}, func(t *testing.T, d string) {
		h := j(d, "home")
		as(t, alice, alice, func() {
			_, err := os.ReadFile(j(h, "none"))
			wantErr(t, err, unix.EACCES)
			_, err = os.ReadFile(j(h, "roots"))
			wantErr(t, err, unix.EACCES)
			wantErr(t, appendTo(j(h, "ro")), unix.EACCES)
			wantErr(t, unix.Access(j(h, "ro"), unix.W_OK), unix.EACCES)
			wantErr(t, unix.Access(j(h, "none"), unix.R_OK), unix.EACCES)
			// The owner of the directory may rename and remove all of them, and
			// change what is hers; copy-up must not need to read as her.
			for _, n := range []string{"none", "ro", "roots"} {
				if err := unix.Rename(j(h, n), j(h, n+"2")); err != nil {
					t.Errorf("rename %s: %v", n, err)
				}
			}
			if err := errors.Join(unix.Chmod(j(h, "none2"), 0o200), appendTo(j(h, "none2")), unix.Chmod(j(h, "ro2"), 0o400)); err != nil {
				t.Error(err)
			}
			wantErr(t, unix.Chmod(j(h, "roots2"), 0o777), unix.EPERM)
			if err := unix.Unlink(j(h, "roots2")); err != nil {
				t.Error(err)
			}
		})
		as(t, bob, bob, func() {
			_, err := os.ReadFile(j(h, "mine"))
			wantErr(t, err, unix.EACCES)
			wantErr(t, os.WriteFile(j(h, "bobs"), nil, 0o644), unix.EACCES)
			wantErr(t, unix.Unlink(j(h, "mine")), unix.EACCES)
			wantErr(t, unix.Chmod(j(h, "mine"), 0o777), unix.EPERM)
			wantErr(t, unix.Access(j(h, "mine"), unix.R_OK), unix.EACCES)
		})
		content(t, j(h, "none2"), "nonemore")
		wantErr(t, unix.Access(j(h, "ro2"), unix.X_OK), unix.EACCES) // root too needs an x bit
	})
}

func TestPosixACLs(t *testing.T) {
	if _, err := exec.LookPath("setfacl"); err != nil {
		t.Skip("setfacl is not installed")
	}
	everywhereWith(t, shared(), func(t *testing.T, d string) {
		put(t, j(d, "f"), "secret")
		ok(t, unix.Chmod(j(d, "f"), 0o600))
		ok(t, os.Mkdir(j(d, "dir"), 0o755))
	}, func(t *testing.T, d string) {
		setfacl := func(args ...string) string {
			out, err := exec.Command("setfacl", args...).CombinedOutput()
			if err != nil {
				return string(out)
			}
			return ""
		}
		if msg := setfacl("-m", "u:2001:r", j(d, "f")); msg != "" {
			if strings.Contains(msg, "not supported") {
				t.Skip("no ACLs here, and it says so")
			}
			t.Fatal(msg)
		}
		as(t, alice, alice, func() {
			if p, err := os.ReadFile(j(d, "f")); err != nil || string(p) != "secret" {
				t.Errorf("the ACL lets alice read: %q, %v", p, err)
			}
			wantErr(t, appendTo(j(d, "f")), unix.EACCES)
		})
		as(t, bob, bob, func() {
			_, err := os.ReadFile(j(d, "f"))
			wantErr(t, err, unix.EACCES)
		})
		is(t, "group bits show the mask", stat(t, j(d, "f")).Mode&0o777, 0o640)
		ok(t, unix.Chmod(j(d, "f"), 0o600)) // takes the mask away
		as(t, alice, alice, func() {
			_, err := os.ReadFile(j(d, "f"))
			wantErr(t, err, unix.EACCES)
		})
		is(t, "setfacl", setfacl("-d", "-m", "u:2001:rwx,g::r-x,o::---", j(d, "dir")), "")
		ok(t, os.WriteFile(j(d, "dir/inherits"), []byte("x"), 0o666)) // the mode limits the mask
		ok(t, os.Mkdir(j(d, "dir/sub"), 0o777))
		as(t, alice, alice, func() {
			if err := appendTo(j(d, "dir/inherits")); err != nil {
				t.Errorf("default ACL: %v", err)
			}
			if err := os.WriteFile(j(d, "dir/sub/f"), nil, 0o644); err != nil {
				t.Errorf("default ACL of a new directory: %v", err)
			}
		})
		as(t, bob, bob, func() {
			_, err := os.ReadFile(j(d, "dir/inherits"))
			wantErr(t, err, unix.EACCES)
		})
	})
}

func TestPosixFileCapabilities(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	// cap_net_raw+ep, VFS_CAP_REVISION_2.
	value := []byte{1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	everywhereWith(t, shared(), func(t *testing.T, d string) {
		put(t, j(d, "f"), "program")
		ok(t, os.Chmod(j(d, "f"), 0o777))
	}, func(t *testing.T, d string) {
		set := func() { ok(t, unix.Setxattr(j(d, "f"), "security.capability", value, 0)) }
		has := func() bool {
			n, err := unix.Getxattr(j(d, "f"), "security.capability", make([]byte, 64))
			if err != nil && !errors.Is(err, unix.ENODATA) {
				t.Error(err)
			}
			return n > 0 && err == nil
		}
		if err := unix.Setxattr(j(d, "f"), "security.capability", value, 0); errors.Is(err, unix.EOPNOTSUPP) {
			return // refusing is right too
		}
		is(t, "capability after setting", has(), true)
		ok(t, os.Chmod(j(d, "f"), 0o755))
		ok(t, unix.Rename(j(d, "f"), j(d, "g")))
		ok(t, unix.Rename(j(d, "g"), j(d, "f")))
		is(t, "capability after chmod and rename", has(), true)
		ok(t, appendTo(j(d, "f")))
		is(t, "capability after a write", has(), false)
		set()
		ok(t, os.Truncate(j(d, "f"), 2))
		is(t, "capability after truncate", has(), false)
		set()
		ok(t, os.Lchown(j(d, "f"), alice, alice))
		is(t, "capability after chown", has(), false)
	})
}
