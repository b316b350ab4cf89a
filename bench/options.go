package bench

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Options say what to measure and where.
type Options struct {
	Dir       string   // the tree to measure on; "" is a Go toolchain's or a generated one
	Files     int      // with Dir "": the size of a generated tree; 0 prefers the Go toolchain's
	Bytes     int64    // of that tree, all files together; 0 is 8 KiB a file
	Rows      []string // ids or patterns (path.Match); none means all
	Runs      int      // rounds of a comparison; 0 is 5, or 3 with Quick
	Quick     bool     // smaller sizes, fewer rounds
	Work      string   // where to work; "" is the disk of Dir, or the temporary directory
	Binary    string   // the rewindfs to measure
	Writeback bool     // also measure mount --cache writeback
	Timeout   time.Duration
	Progress  Progress
}

// Validate lists everything that is wrong with o.
func (o Options) Validate() error {
	var errs []error
	if o.Dir != "" && o.Files > 0 {
		errs = append(errs, errors.New("give a directory or --files, not both"))
	}
	if o.Files < 0 || o.Bytes < 0 || o.Runs < 0 || o.Timeout < 0 {
		errs = append(errs, errors.New("--files, --bytes, --runs and --timeout cannot be negative"))
	}
	if o.Bytes > 0 && o.Files == 0 {
		errs = append(errs, errors.New("--bytes needs --files"))
	}
	for _, d := range []string{o.Dir, o.Work} {
		if d == "" {
			continue
		}
		if st, err := os.Stat(d); err != nil {
			errs = append(errs, err)
		} else if !st.IsDir() {
			errs = append(errs, fmt.Errorf("%s is not a directory", d))
		}
	}
	if _, err := o.selectRows(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// runs is the number of rounds of a comparison.
func (o Options) runs() int {
	switch {
	case o.Runs > 0:
		return o.Runs
	case o.Quick:
		return 3
	}
	return 5
}

// pick is full, or quick in a quick run.
func pick[T any](o Options, full, quick T) T {
	if o.Quick {
		return quick
	}
	return full
}

// timeout bounds one run of one workload on one system.
func (o Options) timeout() time.Duration {
	if o.Timeout > 0 {
		return o.Timeout
	}
	return pick(o, 10*time.Minute, 2*time.Minute)
}

// treeSize is the size of the generated tree.
func (o Options) treeSize() (files int, bytes int64) {
	files, bytes = o.Files, o.Bytes
	if files == 0 {
		files = pick(o, 15000, 2000)
	}
	if bytes == 0 {
		bytes = int64(files) * 8192
	}
	return files, bytes
}

// workParent is where the working directory goes: where the user wants it, else the
// temporary directory when it is on the same disk as the tree, else beside the tree.
// A temporary directory in memory is no disk: then it is the user's cache directory.
func (o Options) workParent() (string, error) {
	tmp := os.TempDir()
	switch {
	case o.Work != "":
		return filepath.Abs(o.Work)
	case o.Dir != "":
		dir, err := filepath.Abs(o.Dir)
		if err != nil {
			return "", fmt.Errorf("find %s: %w", o.Dir, err)
		}
		if sameDisk(tmp, dir) {
			return tmp, nil
		}
		return filepath.Dir(dir), nil
	}
	if typ, _ := fsOf(tmp); typ == "tmpfs" {
		if cache, err := os.UserCacheDir(); err == nil && os.MkdirAll(cache, 0o700) == nil {
			return cache, nil
		}
	}
	return tmp, nil
}
