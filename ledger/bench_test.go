package ledger

import (
	"fmt"
	"testing"
)

func benchEvent(i int) Event {
	return Event{
		Kind: KindCheckpoint, Session: "web", Branch: "main", Checkpoint: "01JDW5Z0000000000000000001", Label: "stable", Layer: uint64(i), Op: uint64(i),
		Details: map[string]any{"changed_paths": 12, "engine_us": 640},
	}
}

// On the file system of the temporary directory, as a store is on a disk.
func benchLedger(b *testing.B) (*Ledger, string) {
	b.Helper()
	dir := b.TempDir() + "/ledger"
	l, err := Open(dir, testStore, Options{})
	if err != nil {
		b.Fatal(err)
	}
	return l, dir
}

func BenchmarkAppend(b *testing.B) {
	for _, writers := range []int{1, 8} {
		b.Run(fmt.Sprint("writers=", writers), func(b *testing.B) {
			l, _ := benchLedger(b)
			b.ReportAllocs()
			b.SetParallelism(writers)
			b.ResetTimer()
			if writers == 1 {
				for i := range b.N {
					if _, err := l.Append(benchEvent(i)); err != nil {
						b.Fatal(err)
					}
				}
			} else {
				b.RunParallel(func(p *testing.PB) {
					for i := 0; p.Next(); i++ {
						if _, err := l.Append(benchEvent(i)); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			b.StopTimer()
			if err := l.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}

func BenchmarkSync(b *testing.B) {
	l, _ := benchLedger(b)
	for i := range b.N {
		if _, err := l.Append(benchEvent(i)); err != nil {
			b.Fatal(err)
		}
		if _, err := l.Sync(); err != nil {
			b.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkOpen is of a ledger with a full file of lines.
func BenchmarkOpen(b *testing.B) {
	l, dir := benchLedger(b)
	for i := range 30_000 {
		if _, err := l.Append(benchEvent(i)); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		l.writing.Lock()
		if err := l.release(); err != nil {
			b.Fatal(err)
		}
		var err error
		if l, err = Open(dir, testStore, Options{}); err != nil {
			b.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
}

func BenchmarkVerifyAndRead(b *testing.B) {
	l, dir := benchLedger(b)
	for i := range 200_000 {
		if _, err := l.Append(benchEvent(i)); err != nil {
			b.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
	var size int64
	b.Run("verify", func(b *testing.B) {
		for b.Loop() {
			r, err := Verify(dir, testStore)
			if err != nil || !r.OK() {
				b.Fatal(err, r)
			}
			size = r.Bytes
		}
		b.SetBytes(size)
	})
	for name, f := range map[string]Filter{"read all": {}, "read none": {Kinds: []Kind{KindFenced}}} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if err := Read(dir, f, func(*Record) error { return nil }); err != nil {
					b.Fatal(err)
				}
			}
			b.SetBytes(size)
		})
	}
}
