package ledger

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const suffix = ".jsonl"

// maxFileNumber bounds what a name may say; more files there cannot be.
const maxFileNumber = math.MaxInt32

// fileName is the name of file n, from 1.
func fileName(n int) string { return fmt.Sprintf("%08d%s", n, suffix) }

// fileNumber is the number of the file of that name; 0 if it is no file of lines.
func fileNumber(name string) int {
	digits, ok := strings.CutSuffix(name, suffix)
	if !ok {
		return 0
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 1 || n > maxFileNumber || fileName(int(n)) != name {
		return 0
	}
	return int(n)
}

// listFiles returns the numbers of the files of lines in dir, rising.
func listFiles(dir string) ([]int, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list the ledger's files: %w", err)
	}
	var numbers []int
	for _, e := range entries {
		if n := fileNumber(e.Name()); n > 0 {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

func newest(files []int) int {
	if len(files) == 0 {
		return 0
	}
	return files[len(files)-1]
}

// openRegular opens a regular file, never through a link and never waiting for a FIFO.
func openRegular(path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EISDIR) {
			return nil, fmt.Errorf("%w: %s is not a file", ErrDamaged, path)
		}
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%w: %s is not a file", ErrDamaged, path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// createFile makes a new file that its owner alone may read, whatever the umask.
func createFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := f.Chmod(0o600); err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(path))
	}
	return f, nil
}

// lines goes through a file line by line, whatever its size.
type lines struct {
	f      *os.File
	r      *bufio.Reader
	number int   // of file
	at     int64 // where the line that next gives is
}

// openLines opens file number of dir at a place where a line begins. It fails with
// fs.ErrNotExist or ErrDamaged when there is no such file.
func openLines(dir string, number int, at int64) (*lines, error) {
	f, err := openRegular(filepath.Join(dir, fileName(number)), os.O_RDONLY)
	if err != nil {
		return nil, fmt.Errorf("read the ledger: %w", err)
	}
	l := &lines{f: f, r: bufio.NewReaderSize(nil, maxLine), number: number}
	l.seek(at)
	return l, nil
}

func (l *lines) seek(at int64) {
	l.at = at
	l.r.Reset(io.NewSectionReader(l.f, at, math.MaxInt64-at))
}

func (l *lines) close() error { return l.f.Close() }

// next returns a line with its newline, and where it begins. What it returns is
// good until the next call. Of a line longer than any of ours, it returns the beginning only,
// without a newline, and goes on behind it. io.EOF comes with what is there without a newline.
func (l *lines) next() (line []byte, at int64, err error) {
	at = l.at
	line, err = l.r.ReadSlice('\n')
	l.at += int64(len(line))
	for err == bufio.ErrBufferFull {
		// The buffer is read over here: what is kept of it is a copy.
		line = append([]byte(nil), line[:min(len(line), 64)]...)
		var more []byte
		more, err = l.r.ReadSlice('\n')
		l.at += int64(len(more))
	}
	if err != nil && err != io.EOF {
		return nil, at, fmt.Errorf("read the ledger's file %s: %w", fileName(l.number), err)
	}
	return line, at, err
}

// missing reports whether err says that a file is not there, or is not a file.
func missing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrDamaged)
}
