package proctree

import (
	"slices"
	"testing"
)

func TestCgroupMount(t *testing.T) {
	for line, want := range map[string][]string{
		"30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate": {"/", "/sys/fs/cgroup"},
		"30 23 0:26 /a/b /sys/fs/cgroup/unified rw - cgroup2 none rw":                    {"/a/b", "/sys/fs/cgroup/unified"},
		"31 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory":                nil,
		"22 1 8:1 / / rw - ext4 /dev/sda1 rw":                                            nil,
		`30 23 0:26 / /odd\040place rw - cgroup2 cgroup2 rw`:                             nil,
		"":                           nil,
		"30 23 - cgroup2 cgroup2 rw": nil,
	} {
		root, point, ok := cgroup2Mount(line)
		if got := []string{root, point}; ok != (want != nil) || ok && !slices.Equal(got, want) {
			t.Errorf("%q: got %q %t", line, got, ok)
		}
	}
}
