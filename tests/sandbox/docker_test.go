package sandbox

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rewindfs/rewindfs/internal/dockertest"
	"github.com/rewindfs/rewindfs/internal/mounttest"
)

// TestDockerAttacks has the same done in a container, which has the project at its own path so that the scripts find it.
func TestDockerAttacks(t *testing.T) {
	cli := dockertest.CLI(t)
	if cli != "docker" {
		t.Skipf("%s has another profile of system calls: it lets kernel keys be used", cli)
	}
	// What is in the home is bait, and not for the engine.
	config := t.TempDir()
	ok(t, os.Chmod(config, 0o755))
	ok(t, os.WriteFile(filepath.Join(config, "config.json"), []byte("{}"), 0o644))
	t.Setenv("DOCKER_CONFIG", config)
	for _, user := range []struct {
		name string
		as   uint32
	}{{"root", 0}, {"user", nobody}} {
		t.Run(user.name, func(t *testing.T) {
			w := newWorld(t, user.as, "--allow-other")
			// The container sees nothing else of the host, so what attacks must lie in the project.
			w.m.Sh("mkdir tools && cp " + filepath.Join(w.around, attackerName) + " " + mounttest.Binary() + " tools")
			for i, v := range w.env {
				switch name, path, _ := strings.Cut(v, "="); name {
				case "A", "R":
					w.env[i] = name + "=" + filepath.Join(w.m.Base, "tools", filepath.Base(path))
				}
			}
			in := []string{"--docker", cli, "--image", dockertest.Image, "--workspace", "same"}
			works := w.attack("docker", `"$R" version >/dev/null && "$A" nothing | grep -q "no attack nothing" && echo fine`, in...)
			if works.Stdout != "fine\n" {
				t.Fatalf("nothing can be tried: %s", works)
			}
			for _, try := range tries {
				if try.name == "io_uring" {
					continue // what system calls there are, the engine says; Docker before 25 has this one
				}
				if (try.kinds == "" || strings.Contains(try.kinds, "ns")) && (try.who == "" || try.who == user.name) {
					try.flags = slices.Concat(in, try.flags)
					t.Run(try.name, func(t *testing.T) { w.refuses(t, "docker", try) })
				}
			}
			if _, err := os.Lstat(filepath.Join(w.m.Base, "tools")); err == nil {
				t.Error("the host's copy of the project has changed")
			}
		})
	}
}
