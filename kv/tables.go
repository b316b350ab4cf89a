package kv

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
	"github.com/dgraph-io/badger/v4/pb"
	sst "github.com/dgraph-io/badger/v4/table"
	"github.com/dgraph-io/badger/v4/y"
	"google.golang.org/protobuf/proto"
)

// tableFile is a table file of the database.
type tableFile struct {
	id    uint64
	level int
	size  int64                   // in bytes
	sum   uint32                  // CRC-32C of the whole file
	pack  options.CompressionType // of its blocks, by Badger's numbers
}

const (
	lastLevel = 6
	// lastLevelTS is the version of all keys in the last level, below that of
	// every flush.
	lastLevelTS = 1

	// Badger's mark of a deleted key, and the version of its manifest format:
	// both are part of its on-disk format (value.go and manifest.go there).
	badgerDeleted  = 1
	badgerManifest = 8

	// tableBytes is where a table file of the last level is full. In level 0, a
	// flush is one file.
	tableBytes = 16 * mib

	// newExt ends the name of a table file that is not yet part of the database.
	newExt = ".new"

	// tablePack is how new tables are compressed, block by block. Neighbours in a table are much alike (the same inode in
	// other layers, the same directory): it makes 43 % of them. Zstd makes a third, but takes five times as long to unpack.
	tablePack = options.Snappy
	blockSize = 4 << 10 // bytes before compression: what a read of one key unpacks
)

// The file "tables" says which table files are the database, each with its length
// and checksum (and how it is compressed, if it is), and ends with a checksum of its own. It is replaced in one step.
// Badger has a manifest for the same purpose, but takes a damaged one for a shorter
// one, and a damaged table for a reason to panic. So Badger's is written anew from
// ours, and Badger gets to see only files that were checked.
const tablesName = "tables"

func formatTables(tables []tableFile) string {
	var s strings.Builder
	for _, t := range tables {
		fmt.Fprintf(&s, "%d %d %d %08x", t.id, t.level, t.size, t.sum)
		if t.pack != options.None { // of format 1, no table was
			fmt.Fprintf(&s, " %d", t.pack)
		}
		s.WriteByte('\n')
	}
	fmt.Fprintf(&s, "end %08x\n", crc32.Checksum([]byte(s.String()), crcTable))
	return s.String()
}

func parseTables(text string) (tables []tableFile, err error) {
	for line := range strings.Lines(text) {
		var t tableFile
		if n, _ := fmt.Sscanf(line, "%d %d %d %x %d\n", &t.id, &t.level, &t.size, &t.sum, &t.pack); n < 4 {
			break
		}
		tables = append(tables, t)
	}
	if formatTables(tables) != text {
		return nil, fmt.Errorf("the list of tables does not check: %w", ErrCorrupt)
	}
	return tables, nil
}

// readTables reads the list of tables, or makes one for a new database.
func (b *base) readTables() ([]tableFile, error) {
	path := filepath.Join(b.dir, tablesName)
	text, err := os.ReadFile(path)
	if err == nil {
		return parseTables(string(text))
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if found, err := filepath.Glob(filepath.Join(b.dir, "*.sst")); err != nil || len(found) > 0 {
		return nil, fmt.Errorf("there are tables but no list of them: %w", ErrCorrupt)
	}
	return nil, spaceErr(writeFileDurably(path, formatTables(nil)))
}

// checkTables compares the table files with the list. It reads them through a
// buffer: what Badger has mapped counts as our memory once it was looked at.
func (b *base) checkTables() error {
	buf := make([]byte, mib)
	for _, t := range b.tables {
		size, sum, err := checksumFile(sst.NewFilename(t.id, b.dir), buf)
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w (%w)", ErrCorrupt, err)
		}
		if err == nil && (size != t.size || sum != t.sum) {
			err = ErrCorrupt
		}
		if err != nil {
			return fmt.Errorf("table %d: %w", t.id, err)
		}
	}
	return nil
}

func checksumFile(path string, buf []byte) (size int64, sum uint32, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	for {
		n, err := f.Read(buf)
		size += int64(n)
		sum = crc32.Update(sum, crcTable, buf[:n])
		if err == io.EOF {
			return size, sum, nil
		}
		if err != nil {
			return 0, 0, err
		}
	}
}

// writeManifest tells Badger what the database is. It writes in place, without
// a new block: a torn manifest is written again by the next open.
func (b *base) writeManifest() error {
	set := pb.ManifestChangeSet{}
	for _, t := range b.tables {
		set.Changes = append(set.Changes, &pb.ManifestChange{
			Id: t.id, Op: pb.ManifestChange_CREATE, Level: uint32(t.level), Compression: uint32(t.pack),
		})
	}
	changes, err := proto.Marshal(&set)
	if err != nil {
		return fmt.Errorf("encoding badger's manifest: %w", err)
	}
	m := append([]byte("Bdgr"), 0, 0, 0, 0)
	binary.BigEndian.PutUint16(m[4:], badgerMagic)
	binary.BigEndian.PutUint16(m[6:], badgerManifest)
	m = binary.BigEndian.AppendUint32(m, uint32(len(changes)))
	m = binary.BigEndian.AppendUint32(m, crc32.Checksum(changes, crcTable))
	m = append(m, changes...)
	f, err := os.OpenFile(filepath.Join(b.dir, badger.ManifestFilename), os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		_, err = f.WriteAt(m, 0)
		err = errors.Join(err, f.Truncate(int64(len(m))), f.Close())
	}
	if err != nil {
		return fmt.Errorf("writing badger's manifest: %w", spaceErr(err))
	}
	return nil
}

// replace makes the files of w, which are complete and durable, part of the
// database instead of those in gone, and moves new readers over to it. If that
// fails the database is what it was, and the files of w are gone.
func (w *tableWriter) replace(gone []badger.TableInfo) error {
	b := w.b
	b.mu.Lock()
	defer b.mu.Unlock()
	old := b.tables
	var tables []tableFile
	for _, t := range old {
		if !slices.ContainsFunc(gone, func(g badger.TableInfo) bool { return g.ID == t.id }) {
			tables = append(tables, t)
		}
	}
	tables = append(tables, w.files...)
	if err := w.publish(tables); err != nil {
		w.drop()
		return err
	}
	b.tables = tables
	g, err := b.open()
	if err != nil {
		// Go on with what is open. The files will be found by the next Open, but
		// the flush or merge counts as failed and is done once more.
		b.tables = old
		return errors.Join(err, b.writeTables(old))
	}
	b.done(b.cur.Swap(g))
	return nil
}

// publish gives the files of w their names and puts them into the list. Until
// then they have other names, as Badger removes table files that it does not know
// when it is opened. The caller holds base.mu.
func (w *tableWriter) publish(tables []tableFile) error {
	for _, t := range w.files {
		path := sst.NewFilename(t.id, w.b.dir)
		if err := os.Rename(path+newExt, path); err != nil {
			return fmt.Errorf("naming a table of badger: %w", err)
		}
	}
	return w.b.writeTables(tables)
}

func (b *base) writeTables(tables []tableFile) error {
	if err := writeFileDurably(filepath.Join(b.dir, tablesName), formatTables(tables)); err != nil {
		return fmt.Errorf("writing the list of tables: %w", spaceErr(err))
	}
	return nil
}

// tableWriter builds table files out of ascending keys.
type tableWriter struct {
	b     *base
	level int
	build *sst.Builder // nil between two files
	size  int          // of the keys and values in build, in bytes
	files []tableFile  // written so far
}

// add adds a version of a key. A nil val is a deletion.
func (w *tableWriter) add(key, val []byte, ts uint64) error {
	if w.build == nil {
		w.build = sst.NewTableBuilder(sst.Options{
			BlockSize: blockSize, BloomFalsePositive: 0.01, Compression: tablePack, TableSize: mib,
		})
		w.size = 0
	}
	v := y.ValueStruct{Value: val}
	if val == nil {
		v.Meta = badgerDeleted
	}
	w.build.Add(y.KeyWithTs(key, ts), v, 0)
	if w.size += len(key) + len(val); w.size >= w.b.tableBytes && w.level > 0 {
		return w.cut()
	}
	return nil
}

// cut ends the file that is being built, if any. The next key begins another one.
func (w *tableWriter) cut() error {
	if w.build == nil {
		return nil
	}
	data := w.build.Finish()
	defer func() {
		w.build.Close()
		w.build = nil
	}()
	id := w.b.nextID.Add(1)
	path := sst.NewFilename(id, w.b.dir) + newExt
	if err := writeTable(path, data); err != nil {
		os.Remove(path)
		return fmt.Errorf("writing a table of badger: %w", spaceErr(err))
	}
	w.files = append(w.files, tableFile{id, w.level, int64(len(data)), crc32.Checksum(data, crcTable), tablePack})
	return nil
}

// writeTable writes a file and makes its content durable. Its name becomes so
// with the list's, in the same directory.
func writeTable(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Sync(), f.Close())
}

// drop removes the files written, as they will not be part of the database.
func (w *tableWriter) drop() {
	if w.build != nil {
		w.build.Close()
		w.build = nil
	}
	for _, t := range w.files {
		path := sst.NewFilename(t.id, w.b.dir)
		os.Remove(path + newExt)
		os.Remove(path)
	}
	w.files = nil
}

// write adds what t holds to the database: all of it or, with an error, nothing.
func (b *base) write(t *table) error {
	ts := b.ts + 1
	w := &tableWriter{b: b, level: 0}
	var err error
	t.keys.Scan(func(k string, v []byte) bool {
		if v == nil {
			// Most of what is deleted never got here.
			var found bool
			if _, found, err = b.get(view(k)); err != nil || !found {
				return err == nil
			}
		}
		err = w.add(view(k), v, ts)
		return err == nil
	})
	if err = errors.Join(err, w.cut()); err != nil {
		w.drop()
		return fmt.Errorf("handing records to badger: %w", err)
	}
	if len(w.files) > 0 {
		if err := w.replace(nil); err != nil {
			return fmt.Errorf("handing records to badger: %w", err)
		}
		b.ts = ts
	}
	return nil
}
