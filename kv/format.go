package kv

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// The format ladder of what kv writes. A store says in its file "format" which
// step it is on; Open migrates older ones and refuses newer ones. A step gets a
// new number when a released rewindfs could misread what this one writes.
const (
	// format1: keys as in testdata/keys.golden, segments as described in
	// segment.go, Badger v4 in managed mode.
	format1 = 1
	// format2: tables of Badger are compressed, and the list of them says which. Those of format 1 are read as they are. There may be
	// records of classes that older programs do not know (e/, u/), whose chunks they would sweep away.
	format2 = 2

	formatNow   = format2
	formatMagic = "rewindfs-kv"
	formatName  = "format"

	// badgerMagic makes Badger refuse databases that are not ours.
	badgerMagic = 0x7766
)

// formatFile is the text of the format file.
func formatFile(version int, id storeID) string {
	return fmt.Sprintf("%s %d\nstore %x\n", formatMagic, version, id[:])
}

func parseFormat(text string) (version int, id storeID, err error) {
	lines := strings.Split(text, "\n")
	num, ok := strings.CutPrefix(lines[0], formatMagic+" ")
	if version, err = strconv.Atoi(num); !ok || err != nil || version < 1 {
		return 0, id, fmt.Errorf("format file does not begin with %q and a version: %w", formatMagic, ErrCorrupt)
	}
	if version > formatNow {
		return version, id, fmt.Errorf("store format is %d, this rewindfs knows up to %d: %w", version, formatNow, ErrNewerFormat)
	}
	if len(lines) < 2 {
		return 0, id, fmt.Errorf("format file is cut off: %w", ErrCorrupt)
	}
	text, ok = strings.CutPrefix(lines[1], "store ")
	raw, err := hex.DecodeString(text)
	if !ok || err != nil || len(raw) != len(id) {
		return 0, id, fmt.Errorf("format file has no store id: %w", ErrCorrupt)
	}
	return version, storeID(raw), nil
}

// ReadID returns the id of the store in dir (see DB.StoreID) without opening it.
func ReadID(dir string) ([16]byte, error) {
	text, err := os.ReadFile(filepath.Join(dir, formatName))
	if err != nil {
		return [16]byte{}, fmt.Errorf("reading the store's format: %w", err)
	}
	_, id, err := parseFormat(string(text))
	if err != nil {
		return [16]byte{}, fmt.Errorf("reading the id of the store in %s: %w", dir, err)
	}
	return id, nil
}

// openFormat reads the format file of the store in dir, or makes one for an
// empty dir.
func openFormat(dir string) (storeID, error) {
	path := filepath.Join(dir, formatName)
	text, err := os.ReadFile(path)
	if err == nil {
		version, id, err := parseFormat(string(text))
		if err == nil && version < formatNow { // what older ones have can be read as it is
			err = raiseFormat(path, id)
		}
		if err != nil {
			return id, fmt.Errorf("opening the store in %s: %w", dir, err)
		}
		return id, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return storeID{}, fmt.Errorf("reading the store's format: %w", err)
	}
	for _, sub := range []string{logDir, badgerDir} {
		if _, err := os.Lstat(filepath.Join(dir, sub)); err == nil {
			return storeID{}, fmt.Errorf("%s holds a store but no format file: %w", dir, ErrCorrupt)
		}
	}
	var id storeID
	rand.Read(id[:]) // never fails
	if err := writeFileDurably(path, formatFile(formatNow, id)); err != nil {
		return id, fmt.Errorf("writing the store's format: %w", spaceErr(err))
	}
	return id, nil
}

// raiseFormat makes the format file at path say formatNow. It writes in place, where only
// the number differs, so that a full disk does not matter.
func raiseFormat(path string, id storeID) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteAt([]byte(formatFile(formatNow, id)), 0)
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err != nil {
		return fmt.Errorf("raising the store's format: %w", spaceErr(err))
	}
	return nil
}

// writeFileDurably makes path hold text, all of it or not at all.
func writeFileDurably(path, text string) error {
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		os.Remove(tmp)
		return err
	}
	return syncDir(filepath.Dir(path))
}
