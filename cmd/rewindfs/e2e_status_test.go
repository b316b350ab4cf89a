package main

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// What status counts is what is there.
func TestStatusTellsTheTruth(t *testing.T) {
	const files = 500
	w := newWorld(t)
	odd := "odd\xff"
	if err := os.WriteFile(filepath.Join(w.base, odd), []byte("base\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	w.sh(fmt.Sprintf("cd $B; mkdir many; for i in $(seq %d); do echo base $i >many/$i; done", files))
	w.mount()
	status := func() map[string]any { return w.rewind("status", "--json").data(t) }
	number := func(st map[string]any, name string, want float64) {
		t.Helper()
		if st[name] != want {
			t.Errorf("%s is %v, want %v", name, st[name], want)
		}
	}
	w.sh("cd $M; for f in many/* odd*; do echo more >>\"$f\"; done; echo new >new")
	st := status()
	number(st, "changed_paths", files+2)
	number(st, "checkpoints", 0)
	if drift := st["drift"].([]any); len(drift) != 0 {
		t.Errorf("drift: %v", drift)
	}
	requests := st["requests"].(map[string]any)
	if n, _ := requests["WRITE"].(float64); n < files+2 {
		t.Errorf("%v WRITE requests for %d writes", n, files+2)
	}
	var onDisk float64
	if _, err := fmt.Sscan(w.sh("du -s --block-size=1 "+w.store()+"/kv "+w.store()+"/packs | awk '{n += $1} END {printf \"%d\", n}'"), &onDisk); err != nil {
		t.Fatal(err)
	}
	// Between the two looks the store may have grown by what it allocates ahead.
	const slack = 80 << 20
	if n := st["store_bytes"].(float64); n <= 0 || n > onDisk+slack || onDisk > n+slack {
		t.Errorf("store_bytes is %v, and %v are on disk", n, onDisk)
	}
	if n := st["memory_bytes"].(float64); n < 4<<20 || n > 2<<30 {
		t.Errorf("memory_bytes is %v", n)
	}

	w.sh("cd $B; echo changed >>many/1; rm many/2; mv many/3 many/3.old; echo 3 >many/3; for f in odd*; do echo x >>\"$f\"; done; echo x >>a.txt")
	want := map[string]string{"many/1": "changed", "many/2": "removed", "many/3": "replaced", odd: "changed"} // a.txt was never changed here
	got := map[string]string{}
	for _, d := range status()["drift"].([]any) {
		d := d.(map[string]any)
		path, _ := d["path"].(string)
		if b64, ok := d["path_b64"].(string); ok {
			b, err := base64.StdEncoding.DecodeString(b64)
			if err != nil {
				t.Fatal(err)
			}
			path = string(b)
		}
		got[path], _ = d["reason"].(string)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("drift is %q, want %q", got, want)
	}

	w.rewind("checkpoint", "c").want(t, 0)
	st = status()
	number(st, "changed_paths", 0)
	number(st, "checkpoints", 1)
	w.unmount()
	w.mount() // counted anew from the records
	w.sh("echo more >>$M/new; rm $M/many/4")
	w.unmount()
	w.mount()
	st = status()
	number(st, "changed_paths", 2)
	number(st, "checkpoints", 1)
	w.unmount()
}
