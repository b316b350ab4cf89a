// Command rewindfs gives a directory a writable view in which everything can be
// taken back. It parses arguments, calls the daemon of a session through package control, and
// prints; what the commands do is decided in package session.
package main

import (
	"os"

	"github.com/rewindfs/rewindfs/sandbox"
)

func main() {
	if code, mine := sandbox.Init(); mine {
		os.Exit(code)
	}
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
