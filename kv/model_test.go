package kv

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Random batches, reads, flushes and reopenings against a map.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		must(t, err)
		opts := Options{FlushIdle: manual, sizes: tiny()}
		db, err := Open(dir, opts)
		must(t, err)
		defer func() { db.Close(); os.RemoveAll(dir) }()
		model := map[string]string{}
		key := rapid.StringMatching(`[abc]{1,3}`)
		rt.Repeat(map[string]func(*rapid.T){
			"apply": func(rt *rapid.T) {
				b := new(Batch)
				for range rapid.IntRange(1, 12).Draw(rt, "ops") {
					k := key.Draw(rt, "key")
					if rapid.IntRange(0, 3).Draw(rt, "kind") == 0 {
						b.Delete([]byte(k))
						delete(model, k)
						continue
					}
					v := strings.Repeat(rapid.StringMatching(`[x-z]`).Draw(rt, "v"),
						rapid.SampledFrom([]int{0, 1, 40, 9000}).Draw(rt, "len"))
					b.Put([]byte(k), []byte(v))
					model[k] = v
				}
				if err := db.Apply(b); err != nil {
					rt.Fatal(err)
				}
			},
			"get": func(rt *rapid.T) {
				k := key.Draw(rt, "key")
				v, ok, err := db.Get([]byte(k))
				want, there := model[k]
				if err != nil || ok != there || string(v) != want {
					rt.Fatalf("get %q = %.20q %v %v, want %.20q %v", k, v, ok, err, want, there)
				}
			},
			"scan": func(rt *rapid.T) {
				prefix := rapid.StringMatching(`[abc]{0,2}`).Draw(rt, "prefix")
				from := rapid.StringMatching(`[abc]{0,3}`).Draw(rt, "from")
				limit := rapid.IntRange(1, 20).Draw(rt, "limit")
				checkScan(rt, db, model, prefix, from, limit)
			},
			"flush": func(rt *rapid.T) {
				if err := db.Flush(); err != nil {
					rt.Fatal(err)
				}
			},
			"sync": func(rt *rapid.T) {
				if err := db.Sync(); err != nil {
					rt.Fatal(err)
				}
			},
			"reopen": func(rt *rapid.T) {
				if seldom(rt) {
					must(t, db.Close())
					db, err = Open(dir, opts)
					must(t, err)
				}
			},
			"crash": func(rt *rapid.T) {
				if seldom(rt) {
					old := dir
					dir = crashed(t, db)
					os.RemoveAll(old)
					db, err = Open(dir, opts)
					must(t, err)
					same(t, dump(t, db), model)
				}
			},
		})
		same(t, dump(t, db), model)
	})
}

// seldom thins out what is slow.
func seldom(rt *rapid.T) bool { return rapid.IntRange(0, 4).Draw(rt, "seldom") == 0 }

func checkScan(rt *rapid.T, db *DB, model map[string]string, prefix, from string, limit int) {
	var want, got []string
	for _, k := range slices.Sorted(maps.Keys(model)) {
		if strings.HasPrefix(k, prefix) && k >= from && len(want) < limit {
			want = append(want, k+"="+model[k])
		}
	}
	err := db.Scan([]byte(prefix), []byte(from), func(k, v []byte) bool {
		got = append(got, string(k)+"="+string(v))
		return len(got) < limit
	})
	if err != nil || !slices.Equal(got, want) {
		rt.Fatalf("scan %q from %q limit %d: %v\n got %.200q\nwant %.200q", prefix, from, limit, err, got, want)
	}
}
