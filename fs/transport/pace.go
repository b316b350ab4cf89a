package transport

import "time"

// pace decides whether a reader looks out for the next request for a moment before
// it sleeps. Where a processor that idles is slow to wake, as in virtual machines,
// that doubles the speed; where others wait for the processor, it slows everybody down.
// So it is measured, all the time: which way do requests come at shorter intervals?
type pace struct {
	limit  time.Duration // longest look-out; 0: never
	fixed  bool          // spin is not to change
	spin   bool          // the way in use
	trial  bool          // it is the other way than the one that has proved better
	left   int           // requests until this changes
	period int           // requests until the next trial; rises while trials bring nothing new
	last   time.Time     // arrival of the last request
	ways   [2]interval   // by way(spin)
}

// interval is what is known of one way.
type interval struct {
	sum   time.Duration // since the last change
	count int
	mean  time.Duration // mostly of what came before the last change; 0: not known
}

const (
	paceTrial  = 32      // requests of a trial
	paceFirst  = 256     // requests before a trial, at first
	paceSeldom = 1 << 12 // and at most
	// paceGap is the longest interval that says something: more is a program's own time.
	paceGap = 400 * time.Microsecond
)

// lookout is how long to look out for the next request.
func (p *pace) lookout() time.Duration {
	if p.spin {
		return p.limit
	}
	return 0
}

// arrived notes the arrival of a request.
func (p *pace) arrived(now time.Time) {
	if p.limit == 0 || p.fixed {
		return
	}
	if gap := now.Sub(p.last); gap < paceGap {
		w := &p.ways[way(p.spin)]
		w.sum += gap
		w.count++
	}
	p.last = now
	if p.left--; p.left < 0 {
		p.change()
	}
}

func way(spin bool) int {
	if spin {
		return 1
	}
	return 0
}

// change begins or ends a trial.
func (p *pace) change() {
	for i := range p.ways {
		p.ways[i].settle()
	}
	if !p.trial && p.ways[way(p.spin)].mean > 0 {
		p.trial, p.spin, p.left = true, !p.spin, paceTrial
		return
	}
	old := p.spin != p.trial // the way in use before the trial
	p.trial, p.spin = false, p.better()
	if p.period = min(2*p.period, paceSeldom); p.spin != old || p.period == 0 {
		p.period = paceFirst
	}
	p.left = p.period
}

// settle takes what was measured into the mean.
func (w *interval) settle() {
	if w.count >= paceTrial/2 {
		m := w.sum / time.Duration(w.count)
		if w.mean > 0 {
			m = (w.mean + 3*m) / 4
		}
		w.mean = m
	}
	w.sum, w.count = 0, 0
}

// better is the way to go: looking out only when that has proved to pay.
func (p *pace) better() bool {
	block, spin := p.ways[0].mean, p.ways[1].mean
	return block > 0 && spin > 0 && spin < block*9/10
}
