package transport

import (
	"testing"
	"time"
)

// drive has n requests arrive, each an interval after the last that depends on the
// way in use, and returns how many were awaited by looking out.
func drive(p *pace, n int, block, spin time.Duration) (spun int) {
	now := p.last.Add(time.Hour)
	for range n {
		gap := block
		if p.lookout() > 0 {
			gap = spin
			spun++
		}
		now = now.Add(gap)
		p.arrived(now)
	}
	return spun
}

func TestPace(t *testing.T) {
	us := time.Microsecond
	p := &pace{limit: 40 * us}
	const n = 20000
	if spun := drive(p, n, 100*us, 30*us); spun < n*8/10 {
		t.Errorf("looked out %d times of %d although it pays", spun, n)
	}
	// The machine gets busy: it must notice, and then leave it alone but for rare trials.
	drive(p, n, 50*us, 90*us)
	if spun := drive(p, n, 50*us, 90*us); spun > n/50 {
		t.Errorf("looked out %d times of %d although it does not pay", spun, n)
	}
	// And quiet again.
	drive(p, 4*n, 100*us, 30*us)
	if spun := drive(p, n, 100*us, 30*us); spun < n*8/10 {
		t.Errorf("looked out %d times of %d although it pays again", spun, n)
	}
	// A program that thinks between requests teaches nothing.
	q := &pace{limit: 40 * us}
	if spun := drive(q, n, time.Millisecond, time.Millisecond); spun > 0 {
		t.Errorf("looked out %d times for a program that is slow itself", spun)
	}
	never := &pace{}
	if spun := drive(never, n, 100*us, 10*us); spun > 0 {
		t.Errorf("looked out %d times with no time to do so", spun)
	}
}
