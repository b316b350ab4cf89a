package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestArchivesMainJob(t *testing.T) {
	w := newWorld(t)
	w.mount()
	out := filepath.Join(filepath.Dir(w.base), "out")
	if err := os.Mkdir(out, 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(out, "all.rwa")
	w.sh("echo one >$M/a.txt; ln $M/a.txt $M/hard; truncate -s 1M $M/holes; echo end >>$M/holes; mkfifo $M/pipe; ln -s a.txt $M/link")
	w.rewind("checkpoint", "one").want(t, 0)
	w.sh("echo two >$M/a.txt; rm -r $M/sub/deep; mv $M/sub $M/moved; chmod 700 $M/moved; setfattr -n user.k -v v $M/a.txt || true")
	w.rewind("checkpoint", "two").want(t, 0)

	d := w.rewind("export", "two", "-o", file, "--history", "--with-base", "--json").data(t)
	if d["checkpoints"].(float64) != 2 || d["path"] != file || d["format"] != "archive" || d["size"].(float64) <= 0 || len(d["digest"].(string)) != 64 {
		t.Errorf("export --json: %v", d)
	}
	w.sh("test $(ls -A " + out + " | wc -l) = 1; test $(stat -c %a " + file + ") = 600")
	w.rewind("export", "none", "-o", filepath.Join(out, "x")).want(t, exitCheckpoint)
	w.rewind("export", "two").want(t, exitUsage, "-o FILE")
	w.rewind("export", "two", "-o", file, "--format", "zip").want(t, exitUsage, "oci-layer")
	w.rewind("export", "two", "-o", filepath.Join(out, "no", "dir")).want(t, exitPath)
	w.sh("test $(ls -A " + out + " | wc -l) = 1")

	// Into the same session, and into one that is made for it.
	w.rewind("import", file, "--branch", "again").want(t, 0, "Branch again has 2 checkpoints", w.mp+"-again")
	w.same("cat $M-again/a.txt; stat -c '%a %h %y' $M-again/a.txt", w.sh("cat $M/a.txt; stat -c '%a %h %y' $M/a.txt"))
	w.same("cd $M-again; ls -lR --time-style=full-iso . | grep -v ^total", w.sh("cd $M; ls -lR --time-style=full-iso . | grep -v ^total"))
	w.in(w.mp+"-again", "rollback", "one").want(t, 0)
	w.same("cat $M-again/a.txt; ls $M-again/sub", "one\nb.txt\ndeep\n")
	w.rewind("import", file, "--branch", "again").want(t, exitConflict, "there is a branch")
	w.rewind("ledger", "--event", "import").want(t, 0, "again")
	w.rewind("ledger", "--event", "export").want(t, 0, "two")

	fresh := filepath.Join(filepath.Dir(w.base), "fresh")
	if err := os.Mkdir(fresh, 0o755); err != nil {
		t.Fatal(err)
	}
	d = w.rewind("import", file, "--base", fresh, "--branch", "im", "--json").data(t)
	at := d["mountpoint"].(string)
	if at != fresh+".rewind-im" || len(d["checkpoints"].([]any)) != 2 {
		t.Errorf("import --json: %v", d)
	}
	w.same("cd '"+at+"'; ls -lR --time-style=full-iso . | grep -v ^total", w.sh("cd $M; ls -lR --time-style=full-iso . | grep -v ^total"))
	w.same("ls -A "+fresh, "")

	// Without the base it fits on no other one, and says what is missing.
	thin := filepath.Join(out, "thin.rwa")
	w.rewind("export", "two", "-s", w.mp, "-o", thin).want(t, 0, "1 checkpoint", "import")
	w.rewind("import", thin, "-s", fresh, "-b", "thin").want(t, exitConflict, "a.txt: it is missing", "--with-base")
	w.rewind("import", thin, "-s", w.mp, "-b", "thin").want(t, 0)
	w.same("cat $M-thin/a.txt", "two\n")
	w.sh("head -c 300 " + file + " >" + out + "/cut")
	w.rewind("import", filepath.Join(out, "cut"), "-s", w.mp, "-b", "cut").want(t, exitFailure, "nothing was imported")
	w.rewind("branch", "list", "-s", w.mp).want(t, 0, "main", "again", "thin")
	w.rewind("unmount", fresh).want(t, 0)
	w.rewind("unmount", w.mp).want(t, 0)
}

func TestTarOfACheckpoint(t *testing.T) {
	if _, err := exec.LookPath("tar"); err != nil {
		t.Skip("there is no tar")
	}
	w := newWorld(t)
	w.mount()
	w.sh("echo one >$M/a.txt; ln $M/a.txt $M/hard; ln -s a.txt $M/link; rm -r $M/sub/deep; mkfifo $M/pipe; touch -d '2001-02-03 04:05:06.123456789' $M/sub")
	w.rewind("checkpoint", "c").want(t, 0)
	out := w.base + "-tar"
	w.sh("mkdir " + out)
	w.rewind("export", "c", "--format", "tar", "--compress", "gzip", "-o", out+"/c.tgz").want(t, 0)
	w.sh("mkdir " + out + "/x; tar -xpzf " + out + "/c.tgz -C " + out + "/x")
	list := "ls -lR --time-style=full-iso . | grep -v ^total"
	w.same("cd "+out+"/x; "+list, w.sh("cd $M; "+list))
	w.same("cd "+out+"/x; stat -c '%n %h %Y' a.txt hard .", w.sh("cd $M; stat -c '%n %h %Y' a.txt hard ."))
	raw := w.rewind("export", "c", "--format", "oci-layer", "-o", "-").want(t, 0).out
	if !strings.Contains(raw, "sub/.wh.deep") || strings.Contains(raw, "b.txt") {
		t.Error("the layer is not what differs from the base")
	}
	w.sh("echo x >$M/.wh.x")
	w.rewind("checkpoint", "w").want(t, 0)
	w.rewind("export", "w", "--format", "oci-layer", "-o", out+"/l").want(t, exitPath, ".wh.x", "--format tar")
	w.sh("test ! -e " + out + "/l")
	w.unmount()
}
