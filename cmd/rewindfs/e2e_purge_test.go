package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// storeHas lists the files of a store that have one of the texts.
func storeHas(t *testing.T, store string, texts ...string) (found []string) {
	t.Helper()
	err := filepath.WalkDir(store, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(p)
		for _, text := range texts {
			if bytes.Contains(b, []byte(text)) {
				found = append(found, fmt.Sprintf("%s in %s", text, p))
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestPurgeMainJob(t *testing.T) {
	w := newWorld(t)
	w.mount()
	store := w.rewind("status", "--json").data(t)["store"].(string)
	secrets := []string{"TOP-SECRET-SMALL", "TOP-SECRET-BIG", "TOP-SECRET-OLD", "TOP-SECRET-LINK", "TOP-SECRET-MOVED"}
	w.sh(`echo TOP-SECRET-OLD >$M/.env; seq 5000 >$M/kept; echo base kept >>$M/a.txt`)
	w.rewind("checkpoint", "one").want(t, 0)
	w.sh(`echo TOP-SECRET-SMALL >$M/.env; mkdir -p $M/keys/deep; (seq 9000; echo TOP-SECRET-BIG; seq 60000) >$M/keys/deep/big; ln -s TOP-SECRET-LINK $M/keys/link
		echo TOP-SECRET-MOVED >$M/keys/moved; (echo x; seq 100000 130000) >$M/other`)
	w.rewind("checkpoint", "two").want(t, 0)
	w.rewind("fork", "two", "--branch", "try").want(t, 0)
	w.sh(`mv $M/keys/moved $M/elsewhere; cp $M/kept $M-try/copy; echo late >>$M/.env`)
	w.rewind("purge", ".env").want(t, exitConflict, "unmount")
	w.unmount()
	if len(storeHas(t, store, secrets...)) == 0 {
		t.Fatal("the test finds nothing before there was a purge")
	}
	out := w.rewind("purge", "-s", "proj", ".env", "keys").want(t, 0, ".env", "one", "two", "the head of main", "elsewhere", "--yes").out
	if strings.Contains(out, "Emptied") || len(storeHas(t, store, secrets...)) == 0 {
		t.Fatalf("it was purged without --yes: %s", out)
	}
	w.rewind("purge", "-s", "proj", "kept").want(t, 0, "Copy: copy")
	w.rewind("purge", "-s", "proj", "nothing").want(t, 0, "nothing of it")
	w.rewind("purge", "-s", "proj", "..").want(t, exitPath)
	w.rewind("purge", "-s", "proj", ".env", "keys", "--yes").want(t, 0, "Emptied what is at 5 paths")
	if found := storeHas(t, store, secrets...); len(found) > 0 {
		t.Fatalf("after the purge: %s", strings.Join(found, ", "))
	}
	w.rewind("fsck", "-s", "proj").want(t, 0, "clean")
	w.mount()
	w.same("wc -c <$M/.env; wc -c <$M/keys/deep/big; wc -c <$M/elsewhere; wc -c <$M-try/keys/moved; readlink $M/keys/link", "0\n0\n0\n0\npurged\n")
	w.same("tail -1 $M/kept; tail -1 $M/other; tail -1 $M-try/copy; tail -1 $M/a.txt", "5000\n130000\n5000\nbase kept\n")
	w.same("wc -c <$M/.rewind/checkpoints/one/.env; tail -1 $M/.rewind/checkpoints/two/other", "0\n130000\n")
	w.rewind("rollback", "one").want(t, 0)
	w.same("wc -c <$M/.env; tail -1 $M/kept", "0\n5000\n")
	if found := storeHas(t, store, secrets...); len(found) > 0 {
		t.Fatalf("after a rollback: %s", strings.Join(found, ", "))
	}
	w.rewind("ledger", "--event", "purge").want(t, 0, ".env")
	w.unmount()
}

// TestPurgeSaysWhoShowsIt: checkpoints in which the file was deleted are not listed, and conversations that name it are told of.
func TestPurgeSaysWhoShowsIt(t *testing.T) {
	w := newWorld(t)
	w.mount()
	w.sh(`mkdir $M/conf; echo secret >$M/conf/key.pem; echo secret2 >$M/linked; ln $M/linked $M/second`)
	w.rewind("checkpoint", "with").want(t, 0)
	w.sh(`rm $M/conf/key.pem $M/linked`)
	w.rewind("checkpoint", "without").want(t, 0)
	w.sh(`rm $M/second`)
	messages := w.file("messages.json", `[{"role":"user","content":"what is in ./conf/key.pem?"},{"role":"assistant","content":"key.pem.old and monkey.pem are others"}]`)
	w.rewind("checkpoint", "later", "--messages", messages).want(t, 0)
	w.unmount()
	r := w.rewind("purge", "-s", "proj", "conf/key.pem", "a.txt").want(t, 0, "conf/key.pem (up to 7 B) in with\n", "conf/key.pem occurs in 2 messages")
	if strings.Contains(r.out, "a.txt occurs") || strings.Contains(r.out, "without") {
		t.Errorf("it says\n%s", r.out)
	}
	w.rewind("purge", "-s", "proj", "second").want(t, 0, "second (up to 8 B) in with, without\n", "linked (up to 8 B) in with\n")
	w.rewind("purge", "-s", "proj", "conf", "--yes").want(t, 0, "Emptied")
}

// TestPurgeOverwritesWhatWasDeleted: what no name leads to any more is still in the store's files.
func TestPurgeOverwritesWhatWasDeleted(t *testing.T) {
	w := newWorld(t)
	w.mount()
	store := w.rewind("status", "--json").data(t)["store"].(string)
	w.sh(`(echo TOP-SECRET-SMALL >$M/.env; seq 99999; echo TOP-SECRET-BIG) >$M/big; sync; rm $M/.env $M/big`)
	w.unmount()
	secrets := []string{"TOP-SECRET-SMALL", "TOP-SECRET-BIG"}
	if len(storeHas(t, store, secrets...)) == 0 {
		t.Fatal("the test finds nothing before there was a purge")
	}
	w.rewind("purge", "-s", "proj", ".env", "big").want(t, 0, "nothing of it", "--yes")
	if len(storeHas(t, store, secrets...)) == 0 {
		t.Fatal("it was purged without --yes")
	}
	w.rewind("purge", "-s", "proj", ".env", "big", "--yes").want(t, 0, "No checkpoint", "overwritten")
	if found := storeHas(t, store, secrets...); len(found) > 0 {
		t.Fatalf("after the purge: %s", strings.Join(found, ", "))
	}
	w.rewind("fsck", "-s", "proj").want(t, 0, "clean")
}
