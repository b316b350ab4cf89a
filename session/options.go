package session

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/rewindfs/rewindfs/control"
)

// MainBranch is the branch that the first mount makes.
const MainBranch = "main"

// The cache modes of a mount.
const (
	CacheThrough   = "through"   // write(2) returns when the daemon has the data
	CacheWriteback = "writeback" // the kernel gathers writes; close(2) and checkpoints flush
)

// Options say what to open and where to show it. Paths are canonical (see Canonical).
type Options struct {
	Base       string // the directory under the mount
	Mountpoint string // default: Base + ".rewind", or Base itself with Over
	Store      string // default: DefaultStore
	Name       string // default: the last part of Base
	Branch     string // default: main
	Over       bool   // mount on the base itself
	AllowOther bool
	CacheMode  string // default: through
	Debug      bool   // trace every request
	Version    string // of the program, for the record
	StateRoot  string // default: StateRoot()

	// OpenLog opens the log of the store, once it is known to be one; nil means Logger.
	OpenLog func(store string) (*slog.Logger, error)
	Logger  *slog.Logger     // default: silent
	Now     func() time.Time // default: time.Now
	Mount   MountFunc        // default: the kernel, through package fs

	mounted func(path string) (bool, error) // tests; default: what the kernel lists
}

// Complete fills in what is left out.
func (o *Options) Complete() error {
	if o.StateRoot == "" {
		root, err := StateRoot()
		if err != nil {
			return err
		}
		o.StateRoot = root
	}
	if o.Store == "" {
		o.Store = DefaultStore(o.StateRoot, o.Base)
	}
	if o.Name == "" {
		o.Name = storeName(o.Base)
	}
	if o.Branch == "" {
		o.Branch = MainBranch
	}
	if o.CacheMode == "" {
		o.CacheMode = CacheThrough
	}
	switch {
	case o.Over && o.Mountpoint == "":
		o.Mountpoint = o.Base
	case o.Mountpoint == "":
		o.Mountpoint = o.Base + ".rewind"
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Mount == nil {
		o.Mount = mountFS
	}
	if o.mounted == nil {
		o.mounted = mounted
	}
	return nil
}

func badPath(format string, args ...any) error {
	return &control.Error{Code: control.CodeBadPath, Message: fmt.Sprintf(format, args...)}
}

func badRequest(format string, args ...any) error {
	return &control.Error{Code: control.CodeBadRequest, Message: fmt.Sprintf(format, args...)}
}

// Check reports what is wrong with completed options, as far as it can be told
// without the store. It changes nothing.
func (o *Options) Check() error {
	switch o.CacheMode {
	case CacheThrough, CacheWriteback:
	default:
		return badRequest("unknown cache mode %q: use %s or %s", o.CacheMode, CacheThrough, CacheWriteback)
	}
	if o.Branch != MainBranch {
		return &control.Error{Code: control.CodeUnsupported, Message: fmt.Sprintf("a mount of a session shows %q; for branch %q, mount the session and say: rewindfs branch mount %s", MainBranch, o.Branch, o.Branch)}
	}
	if err := checkName(o.Name); err != nil {
		return err
	}
	return o.checkPlaces()
}

// checkName keeps names easy to type, to print, and apart from paths.
func checkName(s string) error {
	switch {
	case s == "", len(s) > 255, !utf8.ValidString(s), strings.Contains(s, "/"), s == ".", s == "..", strings.HasPrefix(s, "-"):
	case strings.ContainsFunc(s, unicode.IsControl):
	default:
		return nil
	}
	return badRequest("%q cannot name a session: give --name with letters and digits", s)
}

// checkPlaces checks how base, mount point and store lie to each other.
func (o *Options) checkPlaces() error {
	if o.Over != (o.Mountpoint == o.Base) {
		if o.Over {
			return badRequest("--over mounts on the base itself: leave the mount point out")
		}
		return badPath("the mount point %s is the base: to mount over the base, say --over", o.Mountpoint)
	}
	switch {
	case !o.Over && inside(o.Mountpoint, o.Base):
		return badPath("the mount point %s lies inside the base %s: give one outside, such as %s.rewind", o.Mountpoint, o.Base, o.Base)
	case !o.Over && below(o.Base, o.Mountpoint):
		return badPath("the base %s lies inside the mount point %s: give another mount point", o.Base, o.Mountpoint)
	case inside(o.Store, o.Base):
		return badPath("the store %s lies inside the base %s: give --store DIR outside of it", o.Store, o.Base)
	case below(o.Store, o.Mountpoint):
		return badPath("the store %s lies inside the mount point %s: give --store DIR outside of it", o.Store, o.Mountpoint)
	case below(o.Base, o.Store) || below(o.Mountpoint, o.Store):
		return badPath("the store %s holds the base or the mount point: give --store DIR of its own", o.Store)
	}
	return nil
}

// checkBase reports why path cannot be a base.
func checkBase(path string) error {
	fi, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return badPath("the base %s does not exist", path)
	case errors.Is(err, fs.ErrPermission):
		return badPath("no permission to look at the base %s", path)
	case daemonGone(err):
		return badPath("the base %s is a mount whose daemon is gone: clear it with fusermount3 -uz %s", path, path)
	case err != nil:
		return badPath("cannot look at the base %s: %v", path, err)
	case !fi.IsDir():
		return badPath("the base %s is not a directory", path)
	}
	return nil
}

// readyMountpoint makes the mount point when it is missing and checks that it is a
// directory of its own, empty, with nothing mounted on it. made says that it was
// made here.
func (o *Options) readyMountpoint() (made bool, err error) {
	if on, err := o.mounted(o.Mountpoint); err != nil {
		return false, err
	} else if on {
		return false, &control.Error{Code: control.CodeBusy, Message: fmt.Sprintf("another session is mounted at %s: unmount it with rewindfs unmount %s, or give another mount point", o.Mountpoint, o.Mountpoint)}
	}
	if o.Over {
		return false, nil
	}
	switch err := os.Mkdir(o.Mountpoint, 0o755); {
	case err == nil:
		return true, nil
	case errors.Is(err, fs.ErrNotExist):
		return false, badPath("the directory %s for the mount point does not exist", filepath.Dir(o.Mountpoint))
	case errors.Is(err, fs.ErrPermission):
		return false, badPath("no permission to make the mount point %s: give another one", o.Mountpoint)
	case !errors.Is(err, fs.ErrExist):
		return false, badPath("cannot make the mount point %s: %v", o.Mountpoint, err)
	}
	fi, err := os.Lstat(o.Mountpoint)
	if err != nil {
		return false, badPath("cannot look at the mount point %s: %v", o.Mountpoint, err)
	}
	if !fi.IsDir() {
		return false, badPath("the mount point %s is not a directory", o.Mountpoint)
	}
	d, err := os.Open(o.Mountpoint)
	if err != nil {
		return false, badPath("cannot look into the mount point %s: %v", o.Mountpoint, err)
	}
	defer d.Close()
	if names, _ := d.Readdirnames(1); len(names) > 0 {
		return false, badPath("the mount point %s is not empty: give an empty directory, or one that does not exist yet", o.Mountpoint)
	}
	return false, nil
}
