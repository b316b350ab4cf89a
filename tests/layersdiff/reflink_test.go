package layersdiff

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/internal/fsops"
	"github.com/rewindfs/rewindfs/internal/fstree"
	"github.com/rewindfs/rewindfs/internal/twin"
)

// TestApplySharesBlocks changes a little of large files, and has the commit write only that where the file system shares blocks; and has it
// the same result where it does not.
func TestApplySharesBlocks(t *testing.T) {
	kinds := []string{"ext4", "xfs", "btrfs"}
	for _, kind := range kinds {
		needDisks(t, kind)
	}
	if !apart(t) {
		return
	}
	d, err := newDisks(fstree.FastTemp(t), kinds...)
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	const size = 16 << 20
	for i, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			s := newApplied(failer{t}, filepath.Join(fstree.FastTemp(t), "store"), filepath.Join(d.at(i), "base"))
			defer s.close()
			names := []string{"huge", "shorter", "longer", "holes"}
			for n, name := range names {
				path := filepath.Join(s.w.base, name)
				s.must(os.WriteFile(path, fstree.Bytes(uint64(n), size), 0o644))
				then := time.Unix(1_000_000_000, 5)
				s.must(os.Chtimes(path, then, then))
				old, err := os.Open(path) // keeps its blocks
				s.must(err)
				defer old.Close()
			}
			used := d.used(t, i)
			for _, o := range []fsops.Op{
				{Kind: fsops.Write, Path: "huge", Off: 5<<20 + 3, Len: 10, Seed: 1},
				{Kind: fsops.Truncate, Path: "shorter", Len: size/2 + 7},
				{Kind: fsops.Append, Path: "longer", Len: 70_000, Seed: 2},
				{Kind: fsops.Truncate, Path: "holes", Len: 2<<20 + 1},
				{Kind: fsops.Truncate, Path: "holes", Len: size},
				{Kind: fsops.Fallocate, Path: "holes", Off: 1 << 20, Len: 100_000, Flags: unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE},
				{Kind: fsops.Write, Path: "holes", Off: 12 << 20, Len: 10, Seed: 1},
			} {
				s.step(twin.Step{Op: o})
			}
			s.commit(0, true)
			var st unix.Stat_t
			s.must(unix.Lstat(filepath.Join(s.w.base, "holes"), &st))
			if got := st.Blocks * 512; got > 3<<20 {
				t.Errorf("the file with holes takes %d bytes", got)
			}
			more := d.used(t, i) - used
			t.Logf("%s: %d bytes more", kind, more)
			if shares := more < size/4; shares != (kind != "ext4") {
				t.Errorf("it took %d bytes more", more)
			}
			s.undo()
		})
	}
}

// used is how much of a disk is in use, in bytes.
func (d *disks) used(t *testing.T, i int) int64 {
	t.Helper()
	var st unix.Statfs_t
	if err := d.sync(i); err != nil {
		t.Fatal(err)
	}
	if err := unix.Statfs(d.at(i), &st); err != nil {
		t.Fatal(err)
	}
	return int64(st.Blocks-st.Bfree) * st.Bsize
}
