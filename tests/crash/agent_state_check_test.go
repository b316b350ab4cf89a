package crash

import (
	"fmt"
	"maps"
	"slices"
	"testing"
)

// turnPair is a pair as it is at the end of turn n.
func turnPair(n int) pair {
	p := pair{model{}, talk{"main": {system()}}}
	for _, name := range steady {
		p.files[name] = file{content: content(name, n), mode: 0o644}
	}
	for i := range n + 1 {
		id := fmt.Sprintf("c-%d-1", i)
		p.talk["main"] = append(p.talk["main"], ask(i), callOf(id), resultOf(id, fmt.Sprintf("counter %d", i)), answer(i))
		p.talk["sub"] = append(p.talk["sub"], ask(i), answer(i))
	}
	return p
}

// TestMixedPairsAreFound shows, without a daemon, that the checks can fail: what is not of one
// piece is found, and what a movement may do is not.
func TestMixedPairsAreFound(t *testing.T) {
	a, b := turnPair(3), turnPair(4)
	notice := `{"role":"user","content":"<rewindfs-rollback checkpoint=\"A\">Back.</rewindfs-rollback>"}`
	with := func(thread string, items ...string) pair {
		p := pair{a.files, maps.Clone(a.talk)}
		p.talk[thread] = slices.Concat(p.talk[thread], items)
		return p
	}
	torn := pair{maps.Clone(a.files), a.talk}
	torn.files["f2"] = b.files["f2"]
	unfinished := with("main", ask(9), callOf("c-9-1", "c-9-2"), resultOf("c-9-1", "counter 9"))
	noticed := with("main", notice)
	noticed.talk["sub"] = append(slices.Clone(noticed.talk["sub"]), notice)
	late := pair{a.files, talk{"main": slices.Concat(a.talk["main"], []string{answer(4), notice}), "sub": noticed.talk["sub"]}}
	for name, c := range map[string]struct {
		want want
		got  pair
		good bool
	}{
		"as it was":                                    {wantOf(a), a, true},
		"files of one, words of the other":             {wantOf(a), pair{a.files, b.talk}, false},
		"words of one, files of the other":             {wantOf(a), pair{b.files, a.talk}, false},
		"one file of the other":                        {wantOf(a), torn, false},
		"one thread of the other":                      {wantOf(a), pair{a.files, talk{"main": a.talk["main"], "sub": b.talk["sub"]}}, false},
		"a thread less":                                {wantOf(a), pair{a.files, talk{"main": a.talk["main"]}}, false},
		"a thread more":                                {wantOf(a), pair{a.files, talk{"main": a.talk["main"], "sub": a.talk["sub"], "x": nil}}, false},
		"one more word":                                {wantOf(a), with("main", ask(1)), false},
		"a notice that nobody asked for":               {restored(a, ""), noticed, false},
		"a notice":                                     {restored(a, "A"), noticed, true},
		"a notice in one thread only":                  {restored(a, "A"), with("main", notice), false},
		"of another checkpoint":                        {restored(a, "B"), noticed, false},
		"a notice, and a word of another time":         {restored(a, "A"), late, false},
		"an unfinished step, dropped":                  {restored(unfinished, ""), with("main", ask(9)), true},
		"an unfinished step, completed":                {restored(unfinished, ""), with("main", ask(9), callOf("c-9-1", "c-9-2"), resultOf("c-9-1", "counter 9"), resultOf("c-9-2", "not run")), true},
		"an unfinished step, with a result of another": {restored(unfinished, ""), with("main", ask(9), callOf("c-9-1", "c-9-2"), resultOf("c-9-1", "counter 8")), false},
	} {
		if how := c.want.differs(c.got); (how == "") != c.good {
			t.Errorf("%s: %q", name, how)
		}
	}
	for name, c := range map[string]struct {
		p      pair
		number int
		good   bool
	}{
		"of one piece": {a, 3, true}, "with a notice": {noticed, 3, true}, "another turn": {a, 4, false}, "torn": {torn, 3, false},
		"other words": {pair{a.files, b.talk}, 3, false}, "other files": {pair{b.files, a.talk}, 3, false},
	} {
		if err := oneCounter(c.p, c.number); (err == nil) != c.good {
			t.Errorf("%s: %v", name, err)
		}
	}
}
