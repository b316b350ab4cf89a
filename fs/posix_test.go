package fs

import (
	"os"
	"testing"

	"github.com/hanwen/go-fuse/v2/posixtest"
)

// notHere are tests of posixtest that cannot apply, and why.
var notHere = map[string]string{
	"FcntlFlockLocksFile": "wants two record locks of one process to conflict, which they do on no file system; go-fuse leaves it out, too",
}

func TestPosix(t *testing.T) {
	for name, test := range posixtest.All {
		t.Run(name, func(t *testing.T) {
			if why := notHere[name]; why != "" {
				t.Skip(why)
			}
			r := newRig(t, nil)
			dir := r.path("d")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			test(t, dir)
		})
	}
}
