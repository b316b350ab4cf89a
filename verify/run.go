package verify

import (
	"context"
	"fmt"
	"time"

	"github.com/rewindfs/rewindfs/internal/capture"
)

// Result is the outcome of a verification with all its attempts.
type Result struct {
	Status  Status  `json:"status"`
	Verdict Verdict `json:"verdict"`          // of the last attempt; zero if that printed none
	Reason  string  `json:"reason,omitempty"` // why the status is Unknown
	// Attempts has every run of the command, in order. It is empty if the Spec was not valid.
	Attempts  []Attempt `json:"attempts"`
	Cancelled bool      `json:"cancelled,omitempty"` // the context ended before there was a verdict
}

// Attempt is one run of the command.
type Attempt struct {
	Number   int           `json:"number"` // counted from 1
	Started  time.Time     `json:"started"`
	Duration time.Duration `json:"duration_ns"`
	Status   Status        `json:"status"`
	Verdict  Verdict       `json:"verdict"`          // zero if none was printed
	Reason   string        `json:"reason,omitempty"` // why the status is Unknown
	// ExitCode is the command's; -1 if it did not start or end, or was ended by Signal. It decides nothing.
	ExitCode int            `json:"exit_code"`
	Signal   string         `json:"signal,omitempty"`
	TimedOut bool           `json:"timed_out,omitempty"`
	Stdout   capture.Output `json:"stdout"`
	Stderr   capture.Output `json:"stderr"`
	// Ended is the number of processes that were there when the command had ended or its time was up, and were ended.
	Ended int `json:"ended,omitempty"`
	// Survivors are processes that could not be ended. They may go on to change files.
	Survivors []int `json:"survivors,omitempty"`
	// Tracked says how processes were found: "cgroup" or "proc"; see the package comment for what the latter can miss.
	Tracked string `json:"tracked,omitempty"`
}

// Run runs the verifier until it says pass or fail, the retries are used up, or ctx
// ends. It returns only when the command's processes have ended (or could not be ended).
func Run(ctx context.Context, s Spec) Result {
	if err := s.Check(); err != nil {
		return Result{Status: Unknown, Reason: fmt.Sprintf("the verifier cannot be run: %v", err)}
	}
	s = s.withDefaults()
	res := Result{Status: Unknown}
	for n := 1; n <= 1+s.Retries; n++ {
		if n > 1 && !pause(ctx, s.RetryDelay) {
			res.Cancelled = true
			return res
		}
		a := s.attempt(ctx, n)
		res.Attempts = append(res.Attempts, a)
		res.Status, res.Verdict, res.Reason = a.Status, a.Verdict, a.Reason
		if s.OnAttempt != nil {
			s.OnAttempt(a)
		}
		if a.Status != Unknown {
			return res
		}
		if ctx.Err() != nil {
			res.Cancelled = true
			return res
		}
	}
	return res
}

// pause waits for d and says whether ctx let it.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
