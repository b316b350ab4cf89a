package archive

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/layers"
)

// Version is the version of the format that this program writes, and the newest it reads.
const Version = 1

// Bounds of the format, in bytes.
const (
	ChunkSize  = 128 << 10
	MaxRecord  = 1 << 20
	maxName    = 255
	maxTarget  = unix.PathMax - 1
	maxXattr   = 64 << 10
	maxMessage = 128 << 20
	partSize   = 512 << 10
)

// RootID is the id of the root directory.
const RootID = uint64(layers.RootIno)

var (
	// ErrBad is in the chain of every error about an archive that is damaged, or asks for what no archive may.
	ErrBad = errors.New("the archive cannot be used")
	// ErrNewer says that a newer rewindfs wrote the archive.
	ErrNewer = errors.New("the archive was written by a newer rewindfs")
)

func bad(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrBad, fmt.Sprintf(format, args...))
}

// Header begins an archive. Base is the name of the base, for people; WithBase that the archive holds its content.
type Header struct {
	Made     time.Time `json:"made"`
	Version  string    `json:"version"` // of the rewindfs that made it
	Session  string    `json:"session"`
	Base     string    `json:"base"`
	WithBase bool      `json:"with_base"`
	History  bool      `json:"history"`
}

// Counts closes an archive: what is in it. Bytes is the content, each chunk counted once.
type Counts struct {
	Checkpoints int   `json:"checkpoints"`
	Objects     int64 `json:"objects"`
	Chunks      int64 `json:"chunks"`
	Bytes       int64 `json:"bytes"`
	Messages    int64 `json:"messages"`
}

// Checkpoint is the journal's entry of the state that the section before it makes. SameLayer: it shares the layer of the one before.
type Checkpoint struct {
	ID        string            `json:"id"`
	Label     string            `json:"label,omitempty"`
	Message   string            `json:"message,omitempty"`
	Metadata  map[string]string `json:"metadata,omitempty"`
	Phase     string            `json:"phase,omitempty"`
	Turn      string            `json:"turn,omitempty"`
	ToolCall  string            `json:"tool_call,omitempty"`
	CreatedAt time.Time         `json:"created_at"`
	Auto      bool              `json:"auto,omitempty"`
	Pending   bool              `json:"pending,omitempty"`
	SameLayer bool              `json:"same_layer,omitempty"`
	Tool      json.RawMessage   `json:"tool,omitempty"`
	Threads   map[string]Thread `json:"threads,omitempty"`
}

// Thread is a conversation of a checkpoint: the history that ends with the link Digest (in hex).
type Thread struct {
	Format   string `json:"format"`
	Lines    bool   `json:"lines,omitempty"`
	Messages int    `json:"messages"`
	Digest   string `json:"digest,omitempty"`
	Missing  bool   `json:"missing,omitempty"` // there was one that could not be read
}

// Digest is a BLAKE3 digest.
type Digest [32]byte

// Node is all that an object is, but for names and content.
type Node struct {
	ID                  uint64
	Mode                uint32 // type and permissions
	UID, GID, Rdev      uint32
	Size                int64
	Atime, Mtime, Ctime layers.Time
	Target              string
	Xattrs              map[string][]byte
}

func (n *Node) typ() uint32   { return n.Mode & unix.S_IFMT }
func (n *Node) isFile() bool  { return n.typ() == unix.S_IFREG }
func (n *Node) isDir() bool   { return n.typ() == unix.S_IFDIR }
func kindOf(m uint32) uint32  { return m & unix.S_IFMT }
func permOf(m uint32) uint32  { return m & 0o7777 }
func slotEnd(off int64) int64 { return off - off%ChunkSize + ChunkSize }

// Section is the kind of a section.
type Section byte

// The sections.
const (
	SectionBase Section = 1
	SectionTree Section = 2
	SectionTalk Section = 3
)

// The records, in the order of the package doc.
type (
	Begin struct{ Section Section }
	Take  struct {
		Dir, ID uint64
		Name    string
	}
	Make struct {
		Dir  uint64
		Name string
		Node Node
	}
	Name struct {
		Dir, ID uint64
		Name    string
	}
	Set   struct{ Node Node }
	Clear struct{ Off, N int64 }
	Data  struct {
		Off   int64
		Bytes []byte // good until the next record is read
		Hash  Digest // computed
	}
	Ref struct {
		Off, N int64
		Hash   Digest
	}
	Print struct{ Hash Digest }
	Link  struct {
		Before  Digest
		Index   uint64
		Message []byte
	}
	End struct{ Section Section }
)

// Record is one of the types above, *Checkpoint or *Counts.
type Record any

type encoder struct{ b []byte }

func (e *encoder) num(v uint64)    { e.b = binary.AppendUvarint(e.b, v) }
func (e *encoder) bytes(p []byte)  { e.num(uint64(len(p))); e.b = append(e.b, p...) }
func (e *encoder) text(s string)   { e.num(uint64(len(s))); e.b = append(e.b, s...) }
func (e *encoder) digest(d Digest) { e.b = append(e.b, d[:]...) }

func (e *encoder) time(t layers.Time) {
	e.b = binary.AppendVarint(e.b, t.Sec)
	e.num(uint64(t.Nsec))
}

func (e *encoder) node(n *Node) {
	for _, v := range []uint64{n.ID, uint64(n.Mode), uint64(n.UID), uint64(n.GID), uint64(n.Rdev), uint64(n.Size)} {
		e.num(v)
	}
	e.time(n.Atime)
	e.time(n.Mtime)
	e.time(n.Ctime)
	e.text(n.Target)
	e.num(uint64(len(n.Xattrs)))
	for _, name := range slices.Sorted(maps.Keys(n.Xattrs)) {
		e.text(name)
		e.bytes(n.Xattrs[name])
	}
}

// decoder reads the fields of one record. The first thing that is wrong stays in err.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = bad(format, args...)
	}
	d.b = nil
}

func (d *decoder) num() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.fail("a number is cut off")
		return 0
	}
	d.b = d.b[n:]
	return v
}

// upTo reads a number that is at most limit.
func (d *decoder) upTo(limit uint64, what string) uint64 {
	v := d.num()
	if v > limit {
		d.fail("%s %d is too large", what, v)
		return 0
	}
	return v
}

func (d *decoder) u32(what string) uint32 { return uint32(d.upTo(1<<32-1, what)) }
func (d *decoder) size(what string) int64 { return int64(d.upTo(1<<62, what)) }
func (d *decoder) id() uint64             { return d.num() }

func (d *decoder) take(n uint64, what string) []byte {
	if n > uint64(len(d.b)) {
		d.fail("%s is cut off", what)
		return nil
	}
	p := d.b[:n]
	d.b = d.b[n:]
	return p
}

func (d *decoder) bytes(limit uint64, what string) []byte {
	return d.take(d.upTo(limit, "the length of "+what), what)
}

func (d *decoder) digest() (h Digest) {
	copy(h[:], d.take(uint64(len(h)), "a digest"))
	return h
}

func (d *decoder) time() layers.Time {
	sec, n := binary.Varint(d.b)
	if n <= 0 {
		d.fail("a time is cut off")
		return layers.Time{}
	}
	d.b = d.b[n:]
	return layers.Time{Sec: sec, Nsec: uint32(d.upTo(999_999_999, "nanoseconds"))}
}

// name reads what may be an entry of a directory.
func (d *decoder) name() string {
	s := string(d.bytes(MaxRecord, "a name"))
	switch {
	case d.err != nil:
	case s == "" || s == "." || s == ".." || len(s) > maxName || strings.ContainsAny(s, "/\x00"):
		d.fail("%.300q cannot be the name of a file", s)
	}
	return s
}

func (d *decoder) node() Node {
	n := Node{ID: d.id(), Mode: d.u32("a mode"), UID: d.u32("an owner"), GID: d.u32("a group"), Rdev: d.u32("a device"), Size: d.size("a size")}
	n.Atime, n.Mtime, n.Ctime = d.time(), d.time(), d.time()
	n.Target = string(d.bytes(maxTarget, "the target of a link"))
	if count := d.upTo(MaxRecord, "a number of attributes"); count > 0 && d.err == nil {
		n.Xattrs = map[string][]byte{}
		for range count {
			name := string(d.bytes(maxName, "the name of an attribute"))
			value := slices.Clone(d.bytes(maxXattr, "an attribute"))
			if d.err != nil {
				return n
			}
			if _, twice := n.Xattrs[name]; twice || name == "" || strings.ContainsRune(name, 0) {
				d.fail("%q cannot be the name of an attribute, or is there twice", name)
			}
			n.Xattrs[name] = value
		}
	}
	d.checkNode(&n)
	return n
}

func (d *decoder) checkNode(n *Node) {
	switch {
	case d.err != nil:
	case n.ID == 0:
		d.fail("an object has no id")
	case n.Mode&^(unix.S_IFMT|0o7777) != 0:
		d.fail("object %d has mode %o", n.ID, n.Mode)
	case !slices.Contains([]uint32{unix.S_IFREG, unix.S_IFDIR, unix.S_IFLNK, unix.S_IFIFO, unix.S_IFSOCK, unix.S_IFCHR, unix.S_IFBLK}, n.typ()):
		d.fail("object %d has no type that there is", n.ID)
	case (n.typ() == unix.S_IFLNK) != (n.Target != "") || strings.ContainsRune(n.Target, 0):
		d.fail("object %d has a target that does not go with its type", n.ID)
	}
}

// done returns err, also when something is left over.
func (d *decoder) done() error {
	if d.err == nil && len(d.b) > 0 {
		d.fail("a record has %d bytes too many", len(d.b))
	}
	return d.err
}

// parse decodes one record.
func parse(letter byte, p []byte) (Record, error) {
	d := &decoder{b: p}
	var rec Record
	switch letter {
	case 'B':
		rec = Begin{Section(d.upTo(255, "a section"))}
	case 'T':
		rec = Take{Dir: d.id(), ID: d.id(), Name: d.name()}
	case 'M':
		rec = Make{Dir: d.id(), Name: d.name(), Node: d.node()}
	case 'N':
		rec = Name{Dir: d.id(), ID: d.id(), Name: d.name()}
	case 'S':
		rec = Set{d.node()}
	case 'X':
		rec = Clear{d.size("an offset"), d.size("a length")}
	case 'D':
		rec = Data{Off: d.size("an offset"), Bytes: d.bytes(ChunkSize, "a chunk")}
	case 'R':
		rec = Ref{d.size("an offset"), d.size("a length"), d.digest()}
	case 'F':
		rec = Print{d.digest()}
	case 'K':
		rec = link{Before: d.digest(), Index: d.upTo(1<<31, "a position"), Size: d.size("the size of a message")}
	case 'P':
		rec = part{d.bytes(MaxRecord, "a message")}
	case 'E':
		rec = end{d.digest()}
	case 'C':
		return parseJSON(p, &Checkpoint{})
	case 'Z':
		return parseJSON(p, &Counts{})
	case 'H':
		return parseJSON(p, &Header{})
	default:
		return nil, bad("there is a record of kind %q", letter)
	}
	return rec, d.done()
}

// link, part and end are records as they are in the file.
type (
	link struct {
		Before Digest
		Index  uint64
		Size   int64
	}
	part struct{ bytes []byte }
	end  struct{ digest Digest }
)

func parseJSON(p []byte, to Record) (Record, error) {
	dec := json.NewDecoder(strings.NewReader(string(p)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(to); err != nil {
		return nil, bad("a description cannot be read: %v", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, bad("a description has something behind it")
	}
	return to, nil
}
