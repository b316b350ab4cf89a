package fs

import (
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestBusy(t *testing.T) {
	r := newRig(t, nil)
	r.write("f", "x")
	if got := r.m.Busy(); len(got) != 0 {
		t.Errorf("an idle mount is used by %v", got)
	}
	h := r.start("holder", r.path("f"))
	h.want("map", "ok")
	d := r.start("dweller", r.mnt)
	got := r.m.Busy()
	for _, want := range []struct {
		pid  int
		uses []string
	}{{h.cmd.Process.Pid, []string{"open: f", "mapped: f"}}, {d.cmd.Process.Pid, []string{"cwd", "open: "}}} {
		i := slices.IndexFunc(got, func(p Process) bool { return p.PID == want.pid })
		if i < 0 || !slices.Equal(got[i].Uses, want.uses) || !strings.Contains(got[i].Command, "fs.test") {
			t.Errorf("process %d with uses %v is not in %+v", want.pid, want.uses, got)
		}
	}
	h.stop()
	d.stop()
	if got := r.m.Busy(); len(got) != 0 {
		t.Errorf("still used by %v", got)
	}
}

func TestParseMapping(t *testing.T) {
	for line, want := range map[string]mapping{
		"7f0000000000-7f0000001000 rw-s 00001000 00:2a 1099511627777              /mnt/a file": {true, true, unix.Mkdev(0, 0x2a), 1099511627777, "/mnt/a file"},
		"7f0000000000-7f0000001000 r--p 00000000 fe:01 42                         /lib/x.so":   {false, false, unix.Mkdev(0xfe, 1), 42, "/lib/x.so"},
		"7ffd00000000-7ffd00001000 rw-p 00000000 00:00 0":                                      {false, true, 0, 0, ""},
	} {
		if got, ok := parseMapping([]byte(line)); !ok || got != want {
			t.Errorf("%q is %+v, %v, want %+v", line, got, ok, want)
		}
	}
	for _, line := range []string{"", "x", "a b c d", "0-1 rw 0 0:0 0", "0-1 rw-s 0 zz:0 0", "0-1 rw-s 0 0:0 nan"} {
		if got, ok := parseMapping([]byte(line)); ok {
			t.Errorf("%q is taken for %+v", line, got)
		}
	}
}

// The fallback for kernels without PROCMAP_QUERY finds the same.
func TestMapsFallback(t *testing.T) {
	r := newRig(t, nil)
	r.write("f", "x")
	h := r.start("holder", r.path("f"))
	h.want("map", "ok")
	var asked, parsed []uint64
	err := eachProcess(func(p *process) {
		if p.pid != h.cmd.Process.Pid {
			return
		}
		p.sharedMappings(r.m.Dev(), func(ino uint64) { asked = append(asked, ino) })
		fd, err := p.open("maps")
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		eachMapping(fd, func(m mapping) {
			if m.dev == r.m.Dev() && m.shared && m.writable {
				parsed = append(parsed, m.ino)
			}
		})
	})
	ino := lstat(t, r.path("f")).Ino
	if err != nil || !slices.Equal(asked, []uint64{ino}) || !slices.Equal(parsed, asked) {
		t.Errorf("asked %v, parsed %v, want %d; %v", asked, parsed, ino, err)
	}
	h.stop()
}

func FuzzParseMapping(f *testing.F) {
	f.Add([]byte("7f0000000000-7f0000001000 rw-s 00001000 00:2a 1099511627777 /mnt/a file"))
	f.Fuzz(func(t *testing.T, line []byte) { parseMapping(line) })
}

func FuzzACL(f *testing.F) {
	f.Add(acl{{aclUserObj, 6, 0}, {aclUser, 7, 5}, {aclGroupObj, 4, 0}, {aclMask, 7, 0}, {aclOther, 0, 0}}.encode(), uint32(0o640))
	f.Fuzz(func(t *testing.T, val []byte, mode uint32) {
		a, err := parseACL(val)
		if err != nil {
			return
		}
		if _, err := parseACL(a.encode()); err != nil {
			t.Fatal(err)
		}
		a.inherit(mode)
		a.chmod(mode)
		bits, _ := a.mode()
		if bits&^0o777 != 0 {
			t.Fatalf("mode %o", bits)
		}
	})
}

func TestKernelThreadsAreSkipped(t *testing.T) {
	skip := kernelThreads()
	for pid := range skip {
		if exe, err := os.Readlink("/proc/" + pid + "/exe"); err == nil {
			t.Errorf("process %s runs %s, it is no kernel thread", pid, exe)
		}
	}
}
