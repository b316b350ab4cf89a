package agent

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rewindfs/rewindfs/control"
)

// long is how many messages the conversations of these tests have.
const long = 5000

// TestEachMessageIsStoredOnce makes 100 checkpoints of a conversation that grows by one
// message each time: every message and every link of it is in the store once, and each
// checkpoint gives back its own.
func TestEachMessageIsStoredOnce(t *testing.T) {
	r := newRig(t)
	ctx := context.Background()
	var ids []string
	for i := range 100 {
		th := r.put("", true, strings.NewReader(chat(long+i)))
		r.write("f", fmt.Sprint(i))
		c, err := r.c.Checkpoint(ctx, control.CheckpointRequest{Threads: map[string]control.Thread{"main": *th}})
		if err != nil {
			t.Fatal(err)
		}
		if c.Conversation.Messages != long+i || c.Conversation.Digest != th.Digest {
			t.Fatalf("checkpoint %d has %+v", i, c.Conversation)
		}
		ids = append(ids, c.ID)
	}
	check := func() {
		t.Helper()
		for _, i := range []int{0, 1, 50, 99} {
			if got, want := r.raw(ids[i], ""), chat(long+i); got != want {
				t.Errorf("checkpoint %d gives back %d bytes, want the %d that were sent", i, len(got), len(want))
			}
		}
	}
	check()
	r.m.Unmount()
	last := long + 99
	messages, links, size := r.records()
	if messages != last || links != last {
		t.Errorf("%d messages and %d links are stored of %d messages", messages, links, last)
	}
	t.Logf("100 histories of %d to %d messages, the last one of %d bytes: %d messages and %d links, %d bytes of records", long, last, len(chat(last)), messages, links, size)
	r.m.Mount()
	r.connect()
	check()
}

// BenchmarkCheckpointWithConversation says what a conversation of 5,000 messages adds to a
// checkpoint, and what bringing it costs: checkpoints without a live conversation, with one, and
// with one that was staged for it and is one message longer each time, in turns.
//
//	go test ./tests/agent -run '^$' -bench Checkpoint -benchtime 300x
func BenchmarkCheckpointWithConversation(b *testing.B) {
	r := newRig(b)
	ctx := context.Background()
	took := map[string][]time.Duration{}
	seal := func(kind string, threads map[string]control.Thread) {
		b.Helper()
		if err := os.WriteFile(r.m.Path("f"), []byte(kind+strings.Repeat("x", len(took[kind])%9)), 0o644); err != nil {
			b.Fatal(err)
		}
		c, err := r.c.Checkpoint(ctx, control.CheckpointRequest{Threads: threads})
		if err != nil {
			b.Fatal(err)
		}
		took[kind] = append(took[kind], time.Duration(c.EngineUS)*time.Microsecond)
	}
	timed := func(kind string, stage bool, messages string) *control.Thread {
		b.Helper()
		start := time.Now()
		th := r.put("", stage, strings.NewReader(messages))
		took[kind] = append(took[kind], time.Since(start))
		return th
	}
	n := long
	r.put("", false, strings.NewReader(chat(n)))
	steps := []func(){
		func() {
			if _, err := r.c.Rollback(ctx, control.RollbackRequest{Ref: "base", MessagesOnly: true, NoNotice: true}); err != nil {
				b.Fatal(err)
			}
			seal("none", nil)
		},
		func() {
			n++
			timed("sync", false, chat(n))
			seal("live", nil)
		},
		func() {
			n++
			th := timed("stage", true, chat(n))
			seal("staged", map[string]control.Thread{"main": *th})
		},
	}
	for i := 0; b.Loop(); i++ {
		for k := range steps {
			steps[(i+k)%len(steps)]() // each comes first, second and third alike
		}
	}
	if st := r.status(); st.Conversation.Messages == 0 && len(took["none"]) == 0 {
		b.Fatal("there is no conversation")
	}
	median := func(kind string) float64 {
		d := slices.Clone(took[kind])
		slices.Sort(d)
		return float64(d[len(d)/2].Nanoseconds()) / 1000
	}
	b.ReportMetric(0, "ns/op")
	for _, kind := range []string{"none", "live", "staged"} {
		b.ReportMetric(median(kind), kind+"-µs")
	}
	b.ReportMetric(median("live")-median("none"), "live-adds-µs")
	b.ReportMetric(median("staged")-median("none"), "staged-adds-µs")
	b.ReportMetric(median("stage")/1000, "stage-ms")
	b.ReportMetric(median("sync")/1000, "sync-ms")
}
