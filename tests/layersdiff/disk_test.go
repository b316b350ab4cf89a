package layersdiff

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/internal/fstree"
)

// Disks that write down all that is written to them, and when they are told to keep it: so that what
// they would hold after a power cut at any moment can be made. A disk is a file of a FUSE mount, below a loop device; another
// process serves it, as this one must be free to wait for it.

// recorded is a write to a disk or, with data nil and zero 0, the order to put on the medium all that was written before.
type recorded struct {
	disk int
	off  int64
	data []byte
	zero int64 // so many zeros instead of data
}

func (r *recorded) flush() bool { return r.data == nil && r.zero == 0 }

const recordHead = 1 + 3*8

func (r *recorded) encode() []byte {
	b := []byte{byte(r.disk)}
	for _, n := range []int64{r.off, int64(len(r.data)), r.zero} {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	return append(b, r.data...)
}

// decodeRecords undoes encode for all of a log; places are where they end in it.
func decodeRecords(log []byte) (all []recorded, places []int64) {
	for at := 0; at < len(log); {
		num := func(i int) int64 { return int64(binary.LittleEndian.Uint64(log[at+1+8*i:])) }
		r := recorded{disk: int(log[at]), off: num(0), zero: num(2)}
		n := int(num(1))
		at += recordHead
		if n > 0 {
			r.data = log[at : at+n]
		}
		at += n
		all, places = append(all, r), append(places, int64(at))
	}
	return all, places
}

// medium is what a disk holds.
type medium map[int64][]byte // by number of the block; all others are zeros

const mediumBlock = 64 << 10

func (m medium) write(p []byte, off int64) {
	for len(p) > 0 {
		b, at := off/mediumBlock, off%mediumBlock
		n := min(int64(len(p)), mediumBlock-at)
		if m[b] == nil && len(bytes.Trim(p[:n], "\x00")) > 0 {
			m[b] = make([]byte, mediumBlock)
		}
		if m[b] != nil {
			copy(m[b][at:], p[:n])
		}
		p, off = p[n:], off+n
	}
}

func (m medium) read(p []byte, off int64) {
	for len(p) > 0 {
		b, at := off/mediumBlock, off%mediumBlock
		n := min(int64(len(p)), mediumBlock-at)
		if m[b] == nil {
			clear(p[:n])
		} else {
			copy(p[:n], m[b][at:])
		}
		p, off = p[n:], off+n
	}
}

func (m medium) apply(r *recorded) {
	m.write(r.data, r.off)
	for at := int64(0); at < r.zero; at += mediumBlock {
		m.write(make([]byte, min(mediumBlock, r.zero-at)), r.off+at)
	}
}

// image makes the disk a file.
func (m medium) image(path string, size int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for b, p := range m {
		if _, err := f.WriteAt(p, b*mediumBlock); err != nil {
			return err
		}
	}
	return f.Truncate(size)
}

// diskServer serves the disks, files "0", "1" and so on.
type diskServer struct {
	fuse.RawFileSystem
	size int64
	mu   sync.Mutex
	log  *os.File // guarded by mu, as are the media
	at   []medium
}

func (d *diskServer) attr(node uint64, a *fuse.Attr) {
	a.Ino, a.Mode, a.Nlink = node, unix.S_IFDIR|0o700, 1
	if node != fuse.FUSE_ROOT_ID {
		a.Mode, a.Size = unix.S_IFREG|0o600, uint64(d.size)
	}
}

func (d *diskServer) Lookup(_ <-chan struct{}, _ *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	n := strings.Index("0123456789"[:len(d.at)], name)
	if n < 0 || len(name) != 1 {
		return fuse.ENOENT
	}
	out.NodeId = uint64(n) + 2
	d.attr(out.NodeId, &out.Attr)
	out.SetEntryTimeout(1 << 40)
	out.SetAttrTimeout(1 << 40)
	return fuse.OK
}

func (d *diskServer) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	d.attr(in.NodeId, &out.Attr)
	return fuse.OK
}

func (d *diskServer) SetAttr(_ <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	d.attr(in.NodeId, &out.Attr)
	return fuse.OK
}

func (d *diskServer) Open(<-chan struct{}, *fuse.OpenIn, *fuse.OpenOut) fuse.Status { return fuse.OK }
func (d *diskServer) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status              { return fuse.OK }

func (d *diskServer) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := max(0, min(int64(len(buf)), d.size-int64(in.Offset)))
	d.at[in.NodeId-2].read(buf[:n], int64(in.Offset))
	return fuse.ReadResultData(buf[:n]), fuse.OK
}

// note writes r down and does it.
func (d *diskServer) note(r recorded) fuse.Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.log.Write(r.encode()); err != nil {
		return fuse.EIO
	}
	d.at[r.disk].apply(&r)
	return fuse.OK
}

func (d *diskServer) Write(_ <-chan struct{}, in *fuse.WriteIn, p []byte) (uint32, fuse.Status) {
	return uint32(len(p)), d.note(recorded{disk: int(in.NodeId - 2), off: int64(in.Offset), data: p})
}

func (d *diskServer) Fsync(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	return d.note(recorded{disk: int(in.NodeId - 2)})
}

func (d *diskServer) Fallocate(_ <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	if in.Mode&(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_ZERO_RANGE) == 0 || in.Length == 0 {
		return fuse.Status(unix.EOPNOTSUPP)
	}
	return d.note(recorded{disk: int(in.NodeId - 2), off: int64(in.Offset), zero: int64(in.Length)})
}

// diskEnv tells the test binary to serve disks: how many and of what size, where, the log. It ends with its input.
const diskEnv = "REWINDFS_TEST_DISKS"

func serveDisks(arg string) error {
	var n int
	d := &diskServer{RawFileSystem: fuse.NewDefaultRawFileSystem()}
	var dir, log string
	if _, err := fmt.Sscanf(arg, "%d %d %s %s", &n, &d.size, &dir, &log); err != nil {
		return err
	}
	for range n {
		d.at = append(d.at, medium{})
	}
	var err error
	if d.log, err = os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600); err != nil {
		return err
	}
	s, err := fuse.NewServer(d, dir, &fuse.MountOptions{DirectMount: true, MaxWrite: 1 << 20, Name: "testdisk"})
	if err != nil {
		return err
	}
	go s.Serve()
	if err := s.WaitMount(); err != nil {
		return err
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return unix.Unmount(dir, unix.MNT_DETACH)
}

// disks are file systems on disks that write down what is done to them.
type disks struct {
	top   string
	kinds []string // of the file systems
	child *exec.Cmd
	stdin io.Closer
}

const diskSize = 320 << 20 // xfs takes nothing smaller

// newDisks makes a disk with a file system of each kind.
func newDisks(top string, kinds ...string) (*disks, error) {
	d := &disks{top: top, kinds: kinds}
	for _, dir := range []string{"disks", "images"} {
		if err := os.MkdirAll(filepath.Join(top, dir), 0o700); err != nil {
			return nil, err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	d.child = exec.Command(self)
	d.child.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d %s %s", diskEnv, len(kinds), int64(diskSize), filepath.Join(top, "disks"), d.log()))
	d.child.Stderr = os.Stderr
	if d.stdin, err = d.child.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := d.child.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := d.child.Start(); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
		return nil, errors.Join(err, d.close())
	}
	for i, kind := range kinds {
		disk := filepath.Join(top, "disks", fmt.Sprint(i))
		if err := run("mkfs."+kind, append(mkfsArgs[kind], disk)...); err != nil {
			return nil, errors.Join(err, d.close())
		}
		if err := d.mount(i, disk); err != nil {
			return nil, errors.Join(err, d.close())
		}
	}
	return d, nil
}

// Small journals, so that they wrap; nothing that would be found out later.
var mkfsArgs = map[string][]string{
	"ext4":  {"-q", "-F", "-m", "0", "-J", "size=4", "-O", "ea_inode", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"},
	"xfs":   {"-q", "-K", "-m", "reflink=1"},
	"btrfs": {"-q", "-K", "-m", "single"},
}

// What a file system does beyond its promises is left out: ext4 writes a file that is renamed over another one.
var mountArgs = map[string]string{"ext4": "loop,noauto_da_alloc", "xfs": "loop", "btrfs": "loop"}

func run(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %v: %w: %s", name, args, err, out)
	}
	return nil
}

func (d *disks) log() string { return filepath.Join(d.top, "log") }

// at is where disk i is mounted.
func (d *disks) at(i int) string { return filepath.Join(d.top, fmt.Sprintf("mnt%d", i)) }

func (d *disks) mount(i int, image string) error {
	if err := os.MkdirAll(d.at(i), 0o700); err != nil {
		return err
	}
	if d.kinds[i] == "btrfs" { // the kernel knows the disk under another name, as newer
		if err := run("btrfs", "device", "scan", "--forget"); err != nil {
			return err
		}
	}
	return run("mount", "-t", d.kinds[i], "-o", mountArgs[d.kinds[i]], image, d.at(i))
}

func (d *disks) unmount() (err error) {
	for i := range d.kinds {
		if e := unix.Unmount(d.at(i), 0); e != nil && !errors.Is(e, unix.EINVAL) && !errors.Is(e, unix.ENOENT) {
			err = errors.Join(err, fmt.Errorf("unmount %s: %w", d.at(i), e), unix.Unmount(d.at(i), unix.MNT_DETACH))
		}
	}
	return err
}

// place is how much of the log there is.
func (d *disks) place() (int64, error) {
	fi, err := os.Stat(d.log())
	if err != nil {
		return 0, err
	}
	return fi.Size(), nil
}

func (d *disks) sync(i int) error {
	f, err := os.Open(d.at(i))
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}

// end unmounts the disks; what was written to them stays.
func (d *disks) end() ([]recorded, []int64, error) {
	if err := d.unmount(); err != nil {
		return nil, nil, err
	}
	log, err := os.ReadFile(d.log())
	all, places := decodeRecords(log)
	return all, places, err
}

func (d *disks) close() error {
	err := d.unmount()
	_ = d.stdin.Close()
	return errors.Join(err, d.child.Wait())
}

// blackout is what disks hold after a power cut. Cuts are made in the order of time.
type blackout struct {
	all  []recorded
	done int      // of all
	kept []medium // what was flushed
	open [][]int  // what was written since, of all
}

func newBlackout(all []recorded, n int) *blackout {
	b := &blackout{all: all, open: make([][]int, n)}
	for range n {
		b.kept = append(b.kept, medium{})
	}
	return b
}

// cut puts into images what the disks hold when the power is cut behind n records. Of what was not flushed there is what keep says, page by page.
func (b *blackout) cut(n int, image func(disk int) string, keep func() bool) error {
	for ; b.done < n; b.done++ {
		r := &b.all[b.done]
		if !r.flush() {
			b.open[r.disk] = append(b.open[r.disk], b.done)
			continue
		}
		for _, i := range b.open[r.disk] {
			b.kept[r.disk].apply(&b.all[i])
		}
		b.open[r.disk] = nil
	}
	for disk, kept := range b.kept {
		now := medium{}
		for k, p := range kept {
			now[k] = bytes.Clone(p)
		}
		for _, i := range b.open[disk] {
			now.applySome(&b.all[i], keep)
		}
		if err := now.image(image(disk), diskSize); err != nil {
			return err
		}
	}
	return nil
}

// applySome applies the pages of r that keep says.
func (m medium) applySome(r *recorded, keep func() bool) {
	const page = 4096
	for at := int64(0); at < max(int64(len(r.data)), r.zero); at += page {
		if !keep() {
			continue
		}
		part := recorded{off: r.off + at}
		if r.data != nil {
			part.data = r.data[at:min(at+page, int64(len(r.data)))]
		} else {
			part.zero = min(page, r.zero-at)
		}
		m.apply(&part)
	}
}

// TestDisk has a disk forget what was not flushed, and nothing else.
func TestDisk(t *testing.T) {
	if needDisks(t, "ext4"); !apart(t) {
		return
	}
	d, err := newDisks(fstree.FastTemp(t), "ext4")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(err)
	defer d.close()
	write := func(name string) string {
		path := filepath.Join(d.at(0), name)
		must(os.WriteFile(path, []byte(strings.Repeat(name, 5000)), 0o600))
		return path
	}
	write("kept")
	must(d.sync(0))
	synced, err := d.place()
	must(err)
	write("lost")
	all, places, err := d.end()
	must(err)
	n := 0
	for ; places[n] <= synced; n++ {
	}
	image := filepath.Join(d.top, "images", "0")
	for _, want := range []struct {
		cut  int
		lost error // what is to be known of the second file
	}{{n, os.ErrNotExist}, {len(all), nil}} {
		must(newBlackout(all, 1).cut(want.cut, func(int) string { return image }, func() bool { return false }))
		must(d.mount(0, image))
		if b, err := os.ReadFile(filepath.Join(d.at(0), "kept")); err != nil || len(b) != 20000 {
			t.Errorf("what was synced: %d bytes, %v", len(b), err)
		}
		if _, err := os.Stat(filepath.Join(d.at(0), "lost")); !errors.Is(err, want.lost) {
			t.Errorf("cut behind record %d of %d: the file that was not synced: %v", want.cut, len(all), err)
		}
		must(d.unmount())
	}
}

// apart runs t, and nothing else, in a process of its own with mounts of its own: somebody who makes a namespace while a disk is mounted
// would go on having it there. It reports whether this is that process.
func apart(t *testing.T) bool {
	const env = "REWINDFS_TEST_APART"
	if os.Getenv(env) != "" {
		return true
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), env+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
	return false
}

// needDisks skips t where no disks of that kind can be made.
func needDisks(t *testing.T, kind string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount disks")
	}
	if _, err := exec.LookPath("mkfs." + kind); err != nil {
		t.Skipf("no %s can be made: %v", kind, err)
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		t.Skipf("no loop devices: %v", err)
	}
}
