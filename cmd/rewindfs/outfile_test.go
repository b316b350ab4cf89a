package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
)

func TestOutFileIsThereWhenItIsWhole(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "out")
	if err := os.WriteFile(name, []byte("before"), 0o640); err != nil {
		t.Fatal(err)
	}
	no := errors.New("no")
	err := writeOutStream(name, func(w io.Writer) error {
		fmt.Fprint(w, "half")
		return no
	})
	if !errors.Is(err, no) || err.Error() != "no" {
		t.Errorf("got %v", err)
	}
	want := func(text string) {
		t.Helper()
		b, err := os.ReadFile(name)
		if err != nil || string(b) != text {
			t.Errorf("it holds %q, %v; want %q", b, err, text)
		}
		if all, err := os.ReadDir(dir); err != nil || len(all) != 1 {
			t.Errorf("files: %v, %v", all, err)
		}
	}
	want("before")
	if err := writeOutFile(name, []byte("after")); err != nil {
		t.Fatal(err)
	}
	want("after")
	if fi, err := os.Stat(name); err != nil || fi.Mode().Perm() != 0o640 {
		t.Errorf("mode: %v, %v", fi, err)
	}
}
