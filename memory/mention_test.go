package memory

import (
	"slices"
	"strings"
	"testing"
)

func TestMentions(t *testing.T) {
	s, _ := openT(t, t.TempDir())
	long := strings.Repeat("x ", 200_000)
	put(t, s, history(
		`{"role":"user","content":"read .env and keys/id_rsa, then .env again"}`,
		`{"role":"assistant","content":"my.environment, a.env2 and id_rsa.pub"}`,
		`{"role":"user","content":"`+long+`id_rsa `+long+`"}`,
		`{"role":"assistant","content":"a \"quoted\" one, and caf\u00e9"}`,
	))
	// Wherever a piece of a long message ends, the name is found.
	for i := range 12 {
		put(t, s, history(`{"role":"user","content":"`+strings.Repeat("y", 256<<10-40+i)+` across.txt end"}`))
	}
	names := []string{".env", "id_rsa", `a "quoted" one`, "café", "across.txt", "nothing", ""}
	got, err := s.Mentions(names)
	if err != nil {
		t.Fatal(err)
	}
	if want := []int{1, 3, 1, 1, 12, 0, 0}; !slices.Equal(got, want) {
		t.Errorf("messages with %q: %v, want %v", names, got, want)
	}
}
