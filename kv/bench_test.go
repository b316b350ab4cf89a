package kv

import (
	"fmt"
	"testing"
	"time"
)

// fiveOps is a batch like that of one file creation.
func fiveOps(b *Batch, i uint64) {
	name := fmt.Sprintf("file-%d", i)
	b.Put(Inode(i, 7), make([]byte, 120))
	b.Put(Name(1, name, 7), make([]byte, 12))
	b.Put(ChangeInode(7, i), nil)
	b.Put(ChangeName(7, 1, name), nil)
	b.Put(Inode(1, 7), make([]byte, 120))
}

func BenchmarkApply(b *testing.B) {
	db := openT(b, b.TempDir(), Options{})
	b.ReportAllocs()
	var batch Batch
	for i := uint64(0); b.Loop(); i++ {
		batch.Reset()
		fiveOps(&batch, i)
		if err := db.Apply(&batch); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkApplySync(b *testing.B) {
	db := openT(b, b.TempDir(), Options{})
	var batch Batch
	for i := uint64(0); b.Loop(); i++ {
		batch.Reset()
		fiveOps(&batch, i)
		if err := db.Apply(&batch); err != nil {
			b.Fatal(err)
		}
		if err := db.Sync(); err != nil {
			b.Fatal(err)
		}
	}
}

// fill puts the records of n files into the store.
func fill(t testing.TB, db *DB, n uint64) {
	t.Helper()
	for i := range n {
		var batch Batch
		fiveOps(&batch, i)
		if err := db.Apply(&batch); err != nil {
			t.Fatal(err)
		}
	}
}

// mergeAll merges until there is nothing to merge.
func mergeAll(t testing.TB, db *DB) {
	t.Helper()
	db.awaitMerge()
	for {
		db.base.mu.Lock()
		before := len(db.base.tables)
		db.base.mu.Unlock()
		must(t, db.base.merge(db.space))
		db.base.mu.Lock()
		after := len(db.base.tables)
		db.base.mu.Unlock()
		if before == after {
			return
		}
	}
}

func BenchmarkRead(b *testing.B) {
	const files = 24_000 // just under 100,000 keys
	for _, where := range []string{"memory", "badger", "badger-merged"} {
		db := openT(b, b.TempDir(), Options{FlushIdle: time.Hour})
		if where == "badger-merged" {
			for i := range uint64(8) {
				fill(b, db, files/8*(i+1))
				db.Flush()
			}
		} else {
			fill(b, db, files)
		}
		if where != "memory" {
			if err := db.Flush(); err != nil {
				b.Fatal(err)
			}
			mergeAll(b, db)
		}
		b.Run(where+"/get-hit", func(b *testing.B) {
			b.ReportAllocs()
			for i := uint64(0); b.Loop(); i++ {
				if _, ok, err := db.Get(Inode(i*7919%files, 7)); !ok || err != nil {
					b.Fatal(ok, err)
				}
			}
		})
		b.Run(where+"/get-miss", func(b *testing.B) {
			b.ReportAllocs()
			for i := uint64(0); b.Loop(); i++ {
				if _, ok, err := db.Get(Inode(i*7919%files, 6)); ok || err != nil {
					b.Fatal(ok, err)
				}
			}
		})
		b.Run(where+"/scan-hit", func(b *testing.B) {
			b.ReportAllocs()
			for i := uint64(0); b.Loop(); i++ {
				n := 0
				if err := db.Scan(InodePrefix(i*7919%files), nil, func(k, v []byte) bool { n++; return true }); err != nil || n != 1 {
					b.Fatal(n, err)
				}
			}
		})
		b.Run(where+"/scan-miss", func(b *testing.B) {
			b.ReportAllocs()
			for i := uint64(0); b.Loop(); i++ {
				n := 0
				if err := db.Scan(InodePrefix(files+i), nil, func(k, v []byte) bool { n++; return true }); err != nil || n != 0 {
					b.Fatal(n, err)
				}
			}
		})
		b.Run(where+"/scan-name-miss", func(b *testing.B) {
			b.ReportAllocs()
			for i := uint64(0); b.Loop(); i++ {
				n := 0
				if err := db.Scan(NamePrefix(1, fmt.Sprintf("file-%d.x", i%files)), nil, func(k, v []byte) bool { n++; return true }); err != nil || n != 0 {
					b.Fatal(n, err)
				}
			}
		})
	}
}
