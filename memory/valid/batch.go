package valid

import "strings"

// batch holds the calls of one message, in formats whose results are the messages right
// behind it. The zero value is a batch without calls.
type batch struct {
	at    int // index of the message that calls
	ids   []string
	open  map[string]int // calls without a result, by id
	asked map[string]bool
	left  int // sum of open
}

func newBatch(at int, ids []string) batch {
	b := batch{at: at, ids: ids, open: make(map[string]int, len(ids)), asked: make(map[string]bool, len(ids)), left: len(ids)}
	for _, id := range ids {
		b.open[id]++
		b.asked[id] = true
	}
	return b
}

type answer int

const (
	answered answer = iota // the result has a call
	repeated               // the call has a result already
	unknown                // there is no such call
)

// answer takes one result. An id that several calls of the batch share takes as many results.
func (b *batch) answer(id string) answer {
	switch {
	case b.open[id] > 0:
		b.open[id]--
		b.left--
		return answered
	case b.asked[id]:
		return repeated
	}
	return unknown
}

// missing lists the ids of the calls without a result, in the order of the calls.
func (b *batch) missing() string {
	var ids []string
	still := make(map[string]int, len(b.open))
	for id, n := range b.open {
		still[id] = n
	}
	for _, id := range b.ids {
		if still[id] > 0 {
			still[id]--
			ids = append(ids, id)
		}
	}
	return strings.Join(ids, ", ")
}
