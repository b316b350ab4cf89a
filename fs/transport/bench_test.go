package transport

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// TestCompare prints figures; it is for people: REWINDFS_BENCH=1 go test -run Compare -v
func TestCompare(t *testing.T) {
	if os.Getenv("REWINDFS_BENCH") == "" {
		t.Skip("set REWINDFS_BENCH to measure")
	}
	type variant struct {
		name  string
		mount func(dir string) func()
	}
	ours := func(name string, f func(*tuning)) variant {
		return variant{name, func(dir string) func() {
			tn := defaultTuning()
			f(&tn)
			c, err := Mount(dir, newMemFS(), Options{FSName: "bench", tune: &tn})
			if err != nil {
				t.Fatal(err)
			}
			return func() { c.Unmount(true); c.Wait() }
		}}
	}
	stock := variant{"stock", func(dir string) func() {
		o := mountOptions(&Options{Logger: quiet()}, nil)
		o.DirectMount, o.FsName, o.Name = true, "bench", "stock"
		o.Options = []string{"default_permissions"}
		s, err := fuse.NewServer(newMemFS(), dir, o)
		if err != nil {
			t.Fatal(err)
		}
		go s.Serve()
		return func() { s.Unmount() }
	}}
	vs := []variant{stock}
	us := time.Microsecond
	for _, spin := range []time.Duration{0, 10 * us, 30 * us} {
		for _, clone := range []bool{false, true} {
			if spin == 0 && clone {
				continue
			}
			vs = append(vs, ours(fmt.Sprintf("pin spin=%v clone=%v", spin, clone), func(t *tuning) { t.spin, t.clone = spin, clone }))
		}
	}
	vs = append(vs, ours("nopin spin=0", func(t *tuning) { t.pin, t.spin = false, 0 }),
		ours("nopin spin=20us", func(t *tuning) { t.pin, t.spin = false, 20*us }),
		ours("generic", func(t *tuning) { t.generic = true }))
	res := make([]map[string][]float64, len(vs))
	for round := range 12 {
		_ = round
		for i, v := range vs {
			dir := t.TempDir()
			stop := v.mount(dir)
			if res[i] == nil {
				res[i] = map[string][]float64{}
			}
			for k, d := range runClient(t, dir) {
				res[i][k] = append(res[i][k], d)
			}
			stop()
		}
	}
	for i, v := range vs {
		line := fmt.Sprintf("%-28s", v.name)
		for _, k := range []string{"create", "lookup+read", "2 procs"} {
			s := res[i][k]
			sort.Float64s(s)
			line += fmt.Sprintf("  %s %6.1f/%6.1f", k, s[0], s[len(s)/2])
		}
		t.Log(line)
	}
}

// TestMain lets the test binary be the client, too: a client in the daemon's own
// process would compete for its goroutine scheduler.
func TestMain(m *testing.M) {
	if dir := os.Getenv("REWINDFS_CLIENT"); dir != "" {
		json.NewEncoder(os.Stdout).Encode(workload(dir))
		return
	}
	os.Exit(m.Run())
}

func runClient(t *testing.T, dir string) map[string]float64 {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "REWINDFS_CLIENT="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]float64
	if err := json.Unmarshal(out, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// workload returns microseconds per file.
func workload(dir string) map[string]float64 {
	const n = 700
	buf := []byte("hello, world")
	out := map[string]float64{}
	create := func(sub string) {
		os.Mkdir(filepath.Join(dir, sub), 0o755)
		for i := range n {
			fd, err := unix.Open(filepath.Join(dir, sub, fmt.Sprint("f", i)), unix.O_CREAT|unix.O_WRONLY, 0o644)
			if err != nil {
				panic(err)
			}
			unix.Write(fd, buf)
			unix.Close(fd)
		}
	}
	start := time.Now()
	create("a")
	out["create"] = float64(time.Since(start).Microseconds()) / n
	os.WriteFile("/proc/sys/vm/drop_caches", []byte("2"), 0)
	in := make([]byte, 100)
	start = time.Now()
	for i := range n {
		fd, err := unix.Open(filepath.Join(dir, "a", fmt.Sprint("f", i)), unix.O_RDONLY, 0)
		if err != nil {
			panic(err)
		}
		unix.Read(fd, in)
		unix.Close(fd)
	}
	out["lookup+read"] = float64(time.Since(start).Microseconds()) / n
	start = time.Now()
	done := make(chan struct{})
	for _, s := range []string{"b", "c"} {
		go func() { create(s); done <- struct{}{} }()
	}
	<-done
	<-done
	out["2 procs"] = float64(time.Since(start).Microseconds()) / n / 2
	return out
}
