// Package dockertest gives tests a Docker daemon of their own. It is not for the program itself.
package dockertest

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Image is made from busybox by scripts/docker-daemon.sh: there is no registry to get one from.
const Image = "rewindfs-test:1"

// hostVar names the daemon that scripts/test.sh has started for the tests.
const hostVar = "REWINDFS_TEST_DOCKER_HOST"

// Env skips the test where there is no daemon for it, and returns the environment by which one is found. Nothing is
// ever asked of the machine's own daemon.
func Env(t *testing.T) []string {
	t.Helper()
	host := os.Getenv(hostVar)
	if host == "" {
		t.Skipf("no Docker daemon for tests: scripts/test.sh docker starts one (%s is not set)", hostVar)
	}
	return []string{"DOCKER_HOST=" + host}
}

// Use is Env for the engines that the test itself calls.
func Use(t *testing.T) {
	t.Helper()
	for _, v := range Env(t) {
		name, value, _ := strings.Cut(v, "=")
		t.Setenv(name, value)
	}
}

// Docker runs docker and returns what it prints.
func Docker(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command("docker", args...)
	cmd.Env = append(os.Environ(), Env(t)...)
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// Containers are the names of all containers that a session has made, running or not.
func Containers(t *testing.T) []string {
	t.Helper()
	out, err := Docker(t, "ps", "--all", "--filter", "label=rewindfs", "--format", "{{.Names}}")
	if err != nil {
		t.Fatalf("list containers: %v: %s", err, out)
	}
	return strings.Fields(out)
}
