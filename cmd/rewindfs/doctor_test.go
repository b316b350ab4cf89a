package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rewindfs/rewindfs/sandbox"
	"github.com/rewindfs/rewindfs/session"
)

// goodMachine is one on which everything is in place for an ordinary user.
func goodMachine(t *testing.T) *machine {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(p, mode); err != nil {
			t.Fatal(err)
		}
		return p
	}
	helper := write("fusermount3", "", 0o755|os.ModeSetuid)
	return &machine{
		device:    write("fuse", "", 0o666),
		fuseConf:  write("fuse.conf", "# mount_max\nuser_allow_other\n", 0o644),
		release:   "6.18.1-test",
		status:    "Name:\tx\nCapEff:\t0000000000000000\nNoNewPrivs:\t0\n",
		storeRoot: func() (string, error) { return filepath.Join(dir, "state", "rewindfs"), nil },
		helper:    func() (string, error) { return helper, nil },
		statfs:    func(string) (int64, uint64, error) { return 0xef53, 100 << 30, nil },
		sessions:  func(context.Context) ([]session.Listed, error) { return nil, nil },
		engine:    func(string) (*sandbox.Engine, error) { return nil, errors.New("none") },
		rules:     func() (sandbox.Rules, error) { return sandbox.Rules{}, nil },
		sandboxes: func() sandbox.Machine { return sandbox.Machine{Landlock: 6} },
	}
}

func TestDoctorFindsAndMends(t *testing.T) {
	dead := session.Listed{Record: session.Record{Name: "p", State: session.StateDead, Base: "/b", Mountpoint: "/b.rewind"}}
	hanging := session.Listed{Record: session.Record{Name: "a b", State: session.StateHanging, Mountpoint: "/b.rewind", PID: 1 << 30}, Store: "/s"}
	orphan := session.Listed{Record: session.Record{State: session.StateOrphan, Mountpoint: "/o"}}
	for name, c := range map[string]struct {
		hurt              func(*machine)
		status, text, fix string
	}{
		"nothing":           {func(*machine) {}, statusOK, "", ""},
		"no device":         {func(m *machine) { m.device += "-gone" }, statusFail, "does not exist", "modprobe fuse"},
		"no device, docker": {func(m *machine) { m.device += "-gone"; m.container = true }, statusFail, "does not exist", "--device /dev/fuse"},
		"no helper":         {func(m *machine) { m.helper = func() (string, error) { return "", errors.New("none") } }, statusFail, "fusermount3 is not installed", "apt install fuse3"},
		"root in docker":    {func(m *machine) { m.root = true; m.helper = func() (string, error) { return "", errors.New("none") } }, statusFail, "CAP_SYS_ADMIN", "--cap-add SYS_ADMIN"},
		"no_new_privs":      {func(m *machine) { m.status = strings.Replace(m.status, "Privs:\t0", "Privs:\t1", 1) }, statusFail, "no_new_privs", ""},
		"helper not setuid": {func(m *machine) { p, _ := m.helper(); os.Chmod(p, 0o755) }, statusFail, "not setuid", "chmod u+s"},
		"root":              {func(m *machine) { m.status = "CapEff:\t000001ffffffffff\n"; m.root = true }, statusOK, "", ""},
		"no allow_other":    {func(m *machine) { os.WriteFile(m.fuseConf, []byte("#user_allow_other\n"), 0o644) }, statusWarn, "user_allow_other is missing", "tee -a"},
		"no fuse.conf":      {func(m *machine) { m.fuseConf += "-gone" }, statusWarn, "user_allow_other is missing", "tee -a"},
		"no namespaces": {func(m *machine) {
			m.sandboxes = func() sandbox.Machine {
				return sandbox.Machine{Landlock: 6, Spaces: errors.New("forbidden"), SpacesFix: "ask root"}
			}
		}, statusWarn, "Landlock alone", "ask root"},
		"no protection": {func(m *machine) {
			m.sandboxes = func() sandbox.Machine { return sandbox.Machine{Spaces: errors.New("forbidden")} }
		}, statusWarn, "protects nothing", ""},
		"no Landlock":      {func(m *machine) { m.sandboxes = func() sandbox.Machine { return sandbox.Machine{} } }, statusWarn, "no Landlock", "lsm=landlock"},
		"old Landlock":     {func(m *machine) { m.sandboxes = func() sandbox.Machine { return sandbox.Machine{Landlock: 2} } }, statusWarn, "truncate", "6.2"},
		"kernel 5.4":       {func(m *machine) { m.release = "5.4.0-generic" }, statusFail, "openat2", "5.6"},
		"kernel 5.15":      {func(m *machine) { m.release = "5.15.0-91" }, statusWarn, "O_TMPFILE", "6.2"},
		"odd kernel":       {func(m *machine) { m.release = "weird" }, statusWarn, "cannot be read", ""},
		"store on NFS":     {func(m *machine) { m.statfs = func(string) (int64, uint64, error) { return 0x6969, 1 << 40, nil } }, statusFail, "NFS", "--store"},
		"store on SMB":     {func(m *machine) { m.statfs = func(string) (int64, uint64, error) { return 0xfe534d42, 1 << 40, nil } }, statusFail, "SMB", "--store"},
		"store on tmpfs":   {func(m *machine) { m.statfs = func(string) (int64, uint64, error) { return 0x01021994, 1 << 40, nil } }, statusWarn, "tmpfs", "--store"},
		"disk full":        {func(m *machine) { m.statfs = func(string) (int64, uint64, error) { return 0xef53, 1 << 20, nil } }, statusFail, "only 1.0 MiB free", "df -h"},
		"disk nearly full": {func(m *machine) { m.statfs = func(string) (int64, uint64, error) { return 0xef53, 1 << 30, nil } }, statusWarn, "only 1.0 GiB free", "df -h"},
		"no home":          {func(m *machine) { m.storeRoot = func() (string, error) { return "", errors.New("no HOME") } }, statusFail, "no HOME", "HOME"},
		"dead mount": {func(m *machine) {
			m.sessions = func(context.Context) ([]session.Listed, error) { return []session.Listed{dead}, nil }
		}, statusWarn, "is gone", "rewindfs mount /b"},
		"hanging daemon": {func(m *machine) {
			m.sessions = func(context.Context) ([]session.Listed, error) { return []session.Listed{hanging}, nil }
		}, statusWarn, "does not answer", "rewindfs unmount --force -s 'a b'"},
		"orphaned mount": {func(m *machine) {
			m.sessions = func(context.Context) ([]session.Listed, error) { return []session.Listed{orphan}, nil }
		}, statusWarn, "no known session", "list --prune --all"},
	} {
		t.Run(name, func(t *testing.T) {
			home(t)
			m := goodMachine(t)
			c.hurt(m)
			var out strings.Builder
			a := &app{out: &out, err: &out}
			err := a.runDoctor(t.Context(), m)
			if (err != nil) != (c.status == statusFail) {
				t.Errorf("error %v", err)
			}
			worst := finding{Status: statusOK}
			for _, f := range m.examine(t.Context()) {
				if f.Status != statusOK && (worst.Status == statusOK || strings.Contains(f.Detail, c.text)) {
					worst = f
				}
			}
			if worst.Status != c.status || !strings.Contains(worst.Detail, c.text) || !strings.Contains(worst.Fix, c.fix) {
				t.Errorf("found %+v", worst)
			}
			if !strings.Contains(out.String(), c.text) || !strings.Contains(out.String(), c.fix) {
				t.Errorf("printed %s", out.String())
			}
		})
	}
}

func TestDoctorJSON(t *testing.T) {
	home(t)
	m := goodMachine(t)
	m.device += "-gone"
	var out strings.Builder
	a := &app{out: &out, err: &out, json: true}
	if code := a.fail(a.runDoctor(t.Context(), m)); code != exitFailure {
		t.Fatalf("code %d", code)
	}
	var r struct {
		Success bool
		Code    int
		Data    doctorResult
	}
	if err := json.Unmarshal([]byte(out.String()), &r); err != nil || r.Success || r.Code != 1 || r.Data.OK || len(r.Data.Checks) < 5 {
		t.Fatalf("%v: %s", err, out.String())
	}
}
