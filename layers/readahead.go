package layers

import (
	"sync"

	"golang.org/x/sys/unix"
)

// Reading ahead from file to file. The kernel waits for one answer before it asks
// for the next file, so a program that reads a cold tree would keep the disk at one
// request at a time. A program that walks a tree mostly reads files in the order in
// which it was given their names; while it does, the base files that come next are
// opened and the disk is told to read them, without waiting for it.
//
// It is done by the request that reveals the order: a file is opened for it that
// would be opened for its own READ a moment later, so there is nothing to hand over
// and nothing to stop (a goroutine of its own was no faster).

const (
	// aheadFiles is how many files are on their way at most. 8, 16 and 32 were equally fast.
	aheadFiles = 8
	// aheadBytes is how much of each is read ahead: what the kernel asks for at once.
	aheadBytes = 128 << 10
	// aheadScan bounds the entries of the listing that one READ looks at.
	aheadScan = 64
)

// readRun is what the reads of a directory's files tell about the next ones.
type readRun struct {
	mu   sync.Mutex // guards the rest; it comes after Tree.mu, which is held for reading at least
	last uint64     // position of the file that was read last, 0: none
	upTo uint64     // the files behind last, up to this one, have been read ahead
}

// restart forgets everything: the directory is listed anew.
func (r *readRun) restart() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last, r.upTo = 0, 0
}

// following notes that the base file n is read from its start, and returns the names
// in its base directory that are to be read ahead: none, unless n is the first file
// of its directory's listing, or one of the few that come after the one read last. The
// caller holds Tree.mu, for reading at least.
func following(n *node) []string {
	if n.bdir == nil || n.bdir.dir == nil || len(n.bdir.dir.base) == 0 {
		return nil
	}
	return n.bdir.dir.follow(position(n.bname))
}

func (d *dirState) follow(pos uint64) (names []string) {
	r := &d.reads
	r.mu.Lock()
	defer r.mu.Unlock()
	from := r.last
	r.last = pos
	if pos <= from {
		if pos < from {
			r.upTo = 0
		}
		return nil
	}
	skip := aheadFiles // empty files and those that the kernel has cached are never asked for
	if from == 0 {
		skip = 0
	}
	scanned, behind := 0, 0
	d.ascend(from, func(e dirent) bool {
		scanned++
		switch {
		case e.layer != 0 || e.typ != unix.S_IFREG || e.pos == pos:
		case e.pos < pos:
			skip--
		default:
			behind++
			if e.pos > r.upTo {
				names, r.upTo = append(names, e.name), e.pos
			}
		}
		return skip >= 0 && behind < aheadFiles && scanned < aheadScan
	})
	return names
}

// prefetch has the beginnings of files read, without waiting for the disk, and keeps
// them open for the reads that are expected. names lie in the directory of the file at p.
func (b *Base) prefetch(p string, names []string) {
	dir, _ := split(p)
	for _, name := range names {
		p := join(dir, name)
		if b.isOpen(p) {
			continue
		}
		// Errors are for whoever wants that file.
		if st, err := b.regular(p); err != nil || st.size == 0 {
			continue
		}
		f, _, err := b.openFile(p, true)
		if err != nil {
			continue
		}
		_ = unix.Fadvise(f.fd, 0, aheadBytes, unix.FADV_WILLNEED) // advice
		f.release()
	}
}

func (b *Base) isOpen(p string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.files.byKey[p] != nil
}
