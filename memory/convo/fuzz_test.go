package convo

import (
	"bytes"
	"encoding/json"
	"testing"
)

// seeds adds every fixture, as an array and as lines.
func seeds(f *testing.F, add func(data []byte, format uint8, fix fixture)) {
	f.Helper()
	for _, fix := range fixtures(f) {
		for i, format := range allFormats {
			if format != fix.Format {
				continue
			}
			h := fix.input()
			add(h.Encode(), uint8(i), fix)
			var lines []byte
			for _, it := range h.Items {
				var b bytes.Buffer
				if err := json.Compact(&b, it); err != nil {
					f.Fatal(err)
				}
				lines = append(append(lines, b.Bytes()...), '\n')
			}
			add(lines, uint8(i), fix)
		}
	}
}

// pick returns a format; "" to have it told apart.
func pick(i uint8) Format {
	if int(i) < len(allFormats) {
		return allFormats[i]
	}
	return ""
}

func FuzzParse(f *testing.F) {
	seeds(f, func(data []byte, format uint8, _ fixture) {
		f.Add(data, format)
		f.Add(data, uint8(255))
		f.Add(data[:len(data)-5], format)
	})
	f.Add([]byte("\xff\xfe\x00[[[[{\""), uint8(0))
	f.Fuzz(func(t *testing.T, data []byte, format uint8) {
		h, err := Parse(data, pick(format))
		if err != nil {
			return
		}
		for _, it := range h.Items {
			if !bytes.Contains(data, it) {
				t.Fatalf("an item has other bytes than the input: %q", it)
			}
		}
		again, err := Parse(h.Encode(), h.Format)
		if err != nil {
			t.Fatalf("cannot read what was written: %v\n%q", err, h.Encode())
		}
		if !same(again.Items, h.Items) || again.Lines != h.Lines {
			t.Fatalf("written and read again: %q, was %q", again.Encode(), h.Encode())
		}
	})
}

func FuzzRepair(f *testing.F) {
	seeds(f, func(data []byte, format uint8, fix fixture) {
		f.Add(data, format, uint8(0), fix.Options.Notice, fix.Options.Pending, fix.Options.NewID)
		f.Add(data, format, uint8(7), "", "", "")
	})
	f.Fuzz(func(t *testing.T, data []byte, format, flags uint8, notice, pending, newID string) {
		h, err := Parse(data, pick(format))
		if err != nil {
			return
		}
		o := Options{Checkpoint: "c1", Mode: []Mode{Auto, Drop, Synthesize, ""}[flags&3], MidSystem: flags&4 != 0, FilesStay: flags&8 != 0,
			Pending: pending, NewID: newID}
		if notice != "" {
			o.Notice = Notice("c1", notice)
		}
		before := h.Encode()
		once, _, err := Repair(h, o)
		if err != nil {
			t.Fatalf("what was parsed cannot be repaired: %v", err)
		}
		if !bytes.Equal(before, h.Encode()) {
			t.Fatal("the input was changed")
		}
		for _, it := range once.Items {
			if !json.Valid(it) {
				t.Fatalf("no JSON: %q", it)
			}
		}
		twice, changes, err := Repair(once, o)
		if err != nil {
			t.Fatalf("what was repaired cannot be read: %v", err)
		}
		if !same(once.Items, twice.Items) {
			t.Fatalf("repaired twice: %s\n%s\nonce\n%s\nfrom\n%s", asJSON(changes), lines(twice.Items), lines(once.Items), lines(h.Items))
		}
	})
}
