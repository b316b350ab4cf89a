package main

import (
	"os"
	"testing"

	"github.com/rewindfs/rewindfs/sandbox"
)

// asProgram makes the test binary act as rewindfs: so daemons that tests start, and
// processes of other users, run the code under test.
const asProgram = "REWINDFS_TEST_AS_PROGRAM"

// noRaceSleep is for programs that tests start: with the race detector, each would wait a
// second at its end for late reports.
const noRaceSleep = "GORACE=atexit_sleep_ms=0"

func TestMain(m *testing.M) {
	if code, mine := sandbox.Init(); mine {
		os.Exit(code)
	}
	if os.Getenv(asProgram) != "" {
		os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}
