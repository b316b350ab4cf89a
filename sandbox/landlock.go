package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// ruleset is what Landlock is told: reading is free, writing is where Write says. Besides it keeps
// processes from looking into others outside (ptrace(2), /proc/PID/environ, /proc/PID/mem), and from mounting.
type ruleset struct {
	ABI   int      // what of Landlock is used, at most what the kernel has
	Write []string // files and directories, as the command sees them; what is missing is left out
}

// Versions of Landlock that make a difference here.
const (
	abiRefer    = 2 // before, files cannot go from one directory to another, not even in the project
	abiTruncate = 3 // before, truncate(2) is not refused
	abiScope    = 6 // before, signals and abstract sockets are not refused
)

// landlockABI is what the kernel has, 0 for nothing.
func landlockABI() int {
	abi, err := ll.LandlockGetABIVersion()
	if err != nil {
		return 0
	}
	return abi
}

// Rights to write.
const (
	writeFile landlock.AccessFSSet = ll.AccessFSWriteFile | ll.AccessFSTruncate
	writeDir  landlock.AccessFSSet = writeFile | ll.AccessFSRefer | ll.AccessFSRemoveDir | ll.AccessFSRemoveFile | ll.AccessFSMakeChar | ll.AccessFSMakeDir |
		ll.AccessFSMakeReg | ll.AccessFSMakeSock | ll.AccessFSMakeFifo | ll.AccessFSMakeBlock | ll.AccessFSMakeSym
)

// enforce holds the calling thread to the rules.
func (r *ruleset) enforce() error {
	config := landlock.Config{HandledAccessFS: writeDir}
	if r.ABI < abiTruncate {
		config.HandledAccessFS &^= ll.AccessFSTruncate
	}
	if r.ABI < abiRefer {
		config.HandledAccessFS &^= ll.AccessFSRefer
	}
	if r.ABI >= abiScope {
		config.Scoped = ll.ScopeAbstractUnixSocket | ll.ScopeSignal
	}
	var rules []landlock.Rule
	for _, path := range append(r.Write, openedToWrite()...) {
		if !within(path, "/dev") && !within(path, "/proc") {
			fd, err := openPlain(path)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
				continue
			}
			if err != nil {
				return fmt.Errorf("allow writing to %s: %w", path, err)
			}
			defer unix.Close(fd)
			path = "/proc/self/fd/" + strconv.Itoa(fd)
		}
		fi, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			continue
		}
		if err != nil {
			return err
		}
		rights := writeFile
		switch {
		case fi.IsDir():
			rights = writeDir
		case fi.Mode()&(fs.ModeNamedPipe|fs.ModeSocket) != 0:
			continue // without a name in a file system; one that has a name lies in a directory
		}
		rules = append(rules, landlock.PathAccess(rights&config.HandledAccessFS, path))
	}
	fd, flags, err := config.NewRulesetFD(rules...)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return ll.LandlockRestrictSelf(fd, flags)
}

// openedToWrite are the names of those of the first three descriptors that were opened for writing, which may be done again by their
// names, as "echo >/dev/stderr" does. What was opened for reading only is not to become writable by that.
func openedToWrite() (names []string) {
	for fd := range uintptr(firstFD) {
		flags, err := unix.FcntlInt(fd, unix.F_GETFL, 0)
		if err == nil && flags&unix.O_PATH == 0 && flags&unix.O_ACCMODE != unix.O_RDONLY {
			names = append(names, "/proc/self/fd/"+strconv.Itoa(int(fd)))
		}
	}
	return names
}
