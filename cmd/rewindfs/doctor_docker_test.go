package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rewindfs/rewindfs/sandbox"
)

func TestDoctorLooksAtDocker(t *testing.T) {
	for name, c := range map[string]struct {
		script            string // of docker; "" for none
		image             string
		status, text, fix string
	}{
		"none":      {"", "", statusOK, "there is no docker, podman, nerdctl", ""},
		"works":     {"exit 0", "", statusOK, "docker works, for --sandbox docker", ""},
		"no daemon": {"echo 'Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?' >&2; exit 1", "", statusWarn, "does not answer", "systemctl start docker"},
		"no right":  {"echo 'permission denied while trying to connect to the Docker daemon socket at unix:///x' >&2; exit 1", "", statusWarn, "you may not use", "usermod -aG docker"},
		"no image":  {`[ "$1" != image ] || { echo "Error: No such image: $5" >&2; exit 1; }`, "img:1", statusWarn, "img:1 is not on this machine", "docker pull img:1"},
		"image":     {"exit 0", "img:1", statusOK, "has the image img:1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := goodMachine(t)
			path := filepath.Join(t.TempDir(), "docker")
			if err := os.WriteFile(path, fmt.Appendf(nil, "#!/bin/sh\n%s\n", c.script), 0o755); err != nil {
				t.Fatal(err)
			}
			m.rules = func() (sandbox.Rules, error) {
				return sandbox.Rules{Docker: sandbox.DockerRules{Image: c.image}}, nil
			}
			m.engine = func(cli string) (*sandbox.Engine, error) {
				if cli != "docker" || c.script == "" {
					return nil, errors.New("none")
				}
				return &sandbox.Engine{CLI: path}, nil
			}
			found := m.checkDocker(t.Context())
			last := found[len(found)-1]
			if last.Status != c.status || !strings.Contains(last.Detail, c.text) || !strings.Contains(last.Fix, c.fix) {
				t.Errorf("%+v", found)
			}
		})
	}
}
