package sandbox

// cgroup bounds a tree of processes. A nil one bounds nothing.
type cgroup struct{ dirs []string }

func (g *cgroup) add(pid int) error { return nil }
func (g *cgroup) remove() []Refusal { return nil }
