// Package dockertest gives tests a container engine of their own. It is not for the program itself.
package dockertest

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Image is made by scripts/with-containers.sh: there is no registry to get one from.
const Image = "rewindfs-test:1"

// engineVar says that there is an engine for tests, and which. Only that script sets it, together with the
// variables by which the engine finds what is the test's: the machine's own is never asked anything.
const engineVar = "REWINDFS_TEST_CONTAINERS"

// CLI is the engine; the test is skipped where there is none for it.
func CLI(t *testing.T) string {
	t.Helper()
	cli := os.Getenv(engineVar)
	if cli == "" {
		t.Skipf("no container engine for tests: scripts/test.sh docker starts one (%s is not set)", engineVar)
	}
	return cli
}

// Env is what the engine needs in its environment.
func Env(t *testing.T) []string {
	t.Helper()
	CLI(t)
	var out []string
	for _, name := range []string{"DOCKER_HOST", "CONTAINERS_STORAGE_CONF", "CONTAINERS_CONF"} {
		if v, ok := os.LookupEnv(name); ok {
			out = append(out, name+"="+v)
		}
	}
	return out
}

// Engine runs the engine and returns what it prints.
func Engine(t *testing.T, args ...string) (string, error) {
	t.Helper()
	out, err := exec.Command(CLI(t), args...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// Containers are the names of all containers that a session has made, running or not.
func Containers(t *testing.T) []string {
	t.Helper()
	out, err := Engine(t, "ps", "--all", "--filter", "label=rewindfs", "--format", "{{.Names}}")
	if err != nil {
		t.Fatalf("list containers: %v: %s", err, out)
	}
	return strings.Fields(out)
}
