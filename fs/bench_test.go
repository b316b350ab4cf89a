package fs

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/layers"
)

// BenchmarkBarrier is what looking for mapped files costs each checkpoint.
func BenchmarkBarrier(b *testing.B) {
	r := newRig(b, nil)
	r.write("f", "x")
	h := r.start("holder", r.path("f"))
	h.want("map", "ok")
	var procs atomic.Int64
	eachProcess(func(*process) { procs.Add(1) })
	start := cpuTime()
	for b.Loop() {
		if err := r.m.Barrier(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(cpuTime()-start)/float64(b.N), "cpu-ns/op")
	b.ReportMetric(float64(procs.Load()), "processes")
	h.stop()
}

// cpuTime is what this process has used, in nanoseconds. On a busy machine it says
// more than the time that went by.
func cpuTime() int64 {
	var u unix.Rusage
	unix.Getrusage(unix.RUSAGE_SELF, &u)
	return u.Utime.Nano() + u.Stime.Nano()
}

// BenchmarkNotify is what a rollback of many names and files costs on top of the
// move itself, per path.
func BenchmarkNotify(b *testing.B) {
	for _, cached := range []bool{true, false} {
		b.Run(fmt.Sprint("cached=", cached), func(b *testing.B) {
			const n = 5000
			r := newRig(b, nil)
			var mv layers.Moved
			for i := range n {
				r.write(fmt.Sprint("f", i), "x")
				st := lstat(b, r.path(fmt.Sprint("f", i)))
				mv.Inos = append(mv.Inos, layers.Ino(st.Ino))
				mv.Names = append(mv.Names, layers.NameKey{Dir: 1, Name: fmt.Sprint("f", i)})
			}
			for b.Loop() {
				b.StopTimer()
				if cached {
					r.sh(0, "cat * > /dev/null")
				} else {
					os.WriteFile("/proc/sys/vm/drop_caches", []byte("2"), 0)
				}
				b.StartTimer()
				if err := r.m.Notify(mv); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/n, "µs/path")
		})
	}
}
