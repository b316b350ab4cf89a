package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/control"
)

// checkOutFile finds out whether name can be written as writeOutFile does, before
// anything is done that cannot be told there.
func checkOutFile(name string) error {
	target, err := outTarget(name)
	if err != nil {
		return err
	}
	dir := filepath.Dir(target)
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return failf(exitPath, "%s cannot be written: the directory %s: %w", show(name), show(dir), err)
	}
	return nil
}

// outTarget follows symlinks, so that they stay, and refuses what is no file.
func outTarget(name string) (string, error) {
	target, err := filepath.EvalSymlinks(name)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(name); err == nil {
			return "", failf(exitPath, "%s is a symlink to nothing", show(name))
		}
		return name, nil
	}
	if err != nil {
		return "", failf(exitPath, "%s cannot be written: %w", show(name), err)
	}
	fi, err := os.Stat(target)
	switch {
	case err != nil:
		return "", failf(exitPath, "%s cannot be written: %w", show(name), err)
	case !fi.Mode().IsRegular():
		return "", failf(exitPath, "%s is not a file", show(name))
	}
	return target, nil
}

// writeOutFile makes the file at name hold data, see writeOutStream.
func writeOutFile(name string, data []byte) error {
	return writeOutStream(name, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// writeOutStream makes the file at name hold what fill writes: all of it, or what it held before. A
// new one is for its owner only; one that is there keeps its mode.
func writeOutStream(name string, fill func(io.Writer) error) (err error) {
	target, err := outTarget(name)
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(target), "."+filepath.Base(target)+".*")
	if err != nil {
		return fmt.Errorf("write %s: %w", show(name), err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(tmp.Name()))
		}
	}()
	if err := fill(tmp); err != nil { // which may be about something else
		return errors.Join(err, tmp.Close())
	}
	if err := putInPlace(tmp, target); err != nil {
		return fmt.Errorf("write %s: %w", show(name), err)
	}
	return nil
}

// putInPlace closes tmp, once it is on the disk, and gives it the name and the mode of target.
func putInPlace(tmp *os.File, target string) (err error) {
	if fi, statErr := os.Stat(target); statErr == nil {
		err = tmp.Chmod(fi.Mode().Perm())
	}
	if err == nil {
		err = tmp.Sync()
	}
	if err = errors.Join(err, tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), target)
}

// writeMessages puts the conversation that a rollback brought back into a file.
func (a *app) writeMessages(name string, res *control.Rollback) error {
	if res.Messages == nil {
		a.warn("there is no conversation at '%s', so %s was not written", res.Checkpoint, show(name))
		return nil
	}
	return writeOutFile(name, encodeMessages(res.Format, res.Messages, res.Lines))
}
