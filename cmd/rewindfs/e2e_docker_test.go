package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rewindfs/rewindfs/internal/dockertest"
)

// inDocker has a command run in dir find the Docker daemon for tests.
func inDocker(t *testing.T, dir string) func(*exec.Cmd) {
	env := dockertest.Env(t)
	return func(c *exec.Cmd) {
		c.Dir = dir
		c.Env = append(c.Env, env...)
	}
}

// docker calls run in a container, in dir.
func (w *world) docker(dir string, args ...string) outcome {
	w.t.Helper()
	return w.finish(append([]string{"run", "--sandbox", "docker", "--docker", dockertest.CLI(w.t), "--image", dockertest.Image}, args...), inDocker(w.t, dir))
}

// containers are those of this world's session.
func (w *world) containers() []string {
	w.t.Helper()
	return slices.DeleteFunc(dockertest.Containers(w.t), func(name string) bool { return !strings.HasPrefix(name, "rewindfs-proj-") })
}

func (w *world) wantContainers(n int) {
	w.t.Helper()
	if got := w.containers(); len(got) != n {
		w.t.Errorf("containers: %q, want %d", got, n)
	}
}

// TestDocker is the main job, through a container.
func TestDocker(t *testing.T) {
	dockertest.CLI(t)
	for name, cred := range map[string]func(*testing.T) *syscall.Credential{
		"root": func(*testing.T) *syscall.Credential { return nil }, "user": ordinaryUser,
	} {
		t.Run(name, func(t *testing.T) {
			if name == "user" {
				withDaemon(t)
			}
			w := newWorldFor(t, cred(t))
			w.mount("--allow-other")
			sub := filepath.Join(w.base, "sub")
			w.docker(sub, "--label", "one", "--", "sh", "-c", "pwd; cat b.txt; echo new >new; exit 3").want(t, 3, "/workspace/sub\nbase b\n")
			w.same("cat $M/sub/new", "new\n")
			w.wantContainers(1)
			// Going back while it runs: the next command sees it at once.
			w.docker(sub, "--", "sh", "-c", "test -f new && rm -r ../a.txt deep").want(t, 0)
			w.rewind("rollback", "one").want(t, 0)
			w.docker(sub, "--", "sh", "-c", "cat ../a.txt deep/c; test -e new || echo gone").want(t, 0, "base a\nbase c\ngone\n")
			w.docker(sub, "--workspace", "same", "--", "pwd").want(t, 0, sub+"\n")
			w.wantContainers(2) // for other settings another one
			w.unmount()
			w.wantContainers(0)
		})
	}
}

// TestDockerHeldFile has one process in the container that keeps a file open through checkpoint and rollback.
func TestDockerHeldFile(t *testing.T) {
	dockertest.CLI(t)
	w := newWorld(t)
	w.mount()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var errs bytes.Buffer
	cmd := w.command(ctx, "exec", "--sandbox", "docker", "--docker", dockertest.CLI(t), "--image", dockertest.Image, "--", "sh", "-c",
		`exec 3>>log; echo first >&3; echo ready; while read line; do echo "$line" >&3 || echo refused; cat a.txt; done`)
	inDocker(t, w.mp)(cmd)
	feed, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string)
	go func() {
		defer close(lines)
		for buf := make([]byte, 1024); ; {
			n, err := out.Read(buf)
			if n > 0 {
				lines <- string(buf[:n])
			}
			if err != nil {
				return
			}
		}
	}()
	if got := <-lines; got != "ready\n" {
		t.Fatalf("%q: %s", got, errs.String())
	}
	w.rewind("checkpoint", "held").want(t, 0)
	w.sh("echo changed >$M/a.txt")
	io.WriteString(feed, "second\n")
	if got := <-lines; got != "changed\n" {
		t.Errorf("after a change: %q", got)
	}
	w.rewind("unmount").want(t, exitConflict, "in use", "sh -c exec 3>>log")
	w.rewind("rollback", "held").want(t, 0)
	io.WriteString(feed, "third\n")
	got := ""
	for !strings.Contains(got, "base a\n") {
		line, more := <-lines
		if got += line; !more {
			break
		}
	}
	// Its descriptor is from before: what it writes there goes nowhere.
	if !strings.Contains(got, "base a\n") {
		t.Errorf("after the rollback: %q", got)
	}
	w.same("cat $M/log", "first\n")
	feed.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, errs.String())
	}
	w.unmount()
	w.wantContainers(0)
}

// TestDockerSignals has signals to rewindfs reach the command in the container.
func TestDockerSignals(t *testing.T) {
	dockertest.CLI(t)
	w := newWorld(t)
	w.mount()
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGUSR1} {
		name := strings.TrimPrefix(map[syscall.Signal]string{syscall.SIGINT: "INT", syscall.SIGTERM: "TERM", syscall.SIGUSR1: "USR1"}[sig], "SIG")
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		cmd := w.command(ctx, "exec", "--sandbox", "docker", "--docker", dockertest.CLI(t), "--image", dockertest.Image, "--", "sh", "-c",
			"trap 'echo caught; exit 9' "+name+"; echo >begun; while :; do sleep 0.05; done")
		inDocker(t, w.mp)(cmd)
		var out bytes.Buffer
		cmd.Stdout = &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for begun := filepath.Join(w.mp, "begun"); os.Remove(begun) != nil; {
			time.Sleep(5 * time.Millisecond)
		}
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != 9 || out.String() != "caught\n" {
			t.Errorf("%v: %d, %q", sig, code, out.String())
		}
	}
	w.unmount()
}

// TestDockerEnds looks at what becomes of containers in all the ways in which a session ends.
func TestDockerEnds(t *testing.T) {
	dockertest.CLI(t)
	w := newWorld(t)
	docker := inDocker(t, "/")
	begin := func() int {
		t.Helper()
		w.finish([]string{"mount", w.base}, docker).want(t, 0)
		w.docker(w.mp, "--", "true").want(t, 0)
		w.wantContainers(1)
		return w.pid()
	}
	pid := begin()
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	waitEnd(t, pid)
	w.wantContainers(0)

	pid = begin()
	w.rewind("unmount", "--lazy").want(t, 0)
	waitEnd(t, pid)
	w.wantContainers(0)

	pid = begin()
	w.rewind("unmount", "--force").want(t, 0)
	waitEnd(t, pid)
	w.wantContainers(0)

	kill(t, begin())
	w.wantContainers(1)
	w.rewind("unmount", w.mp).want(t, 0, "gone already")
	w.wantContainers(0)

	kill(t, begin())
	w.rewind("list", "--prune").want(t, 0)
	w.wantContainers(0)

	kill(t, begin())
	stale := w.containers()[0]
	begin = nil
	w.mount()
	w.docker(w.mp, "--", "cat", "a.txt").want(t, 0, "base a\n")
	w.unmount()
	if left := w.containers(); len(left) > 0 {
		t.Errorf("left: %q; the stale one was %s", left, stale)
	}

	w.mount()
	w.docker(w.mp, "--", "true").want(t, 0)
	w.rewind("destroy", "--yes").want(t, 0)
	w.wantContainers(0)
}

func waitEnd(t *testing.T, pid int) {
	t.Helper()
	for end := time.Now().Add(limit); syscall.Kill(pid, 0) == nil; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("process %d does not end", pid)
		}
	}
}

// TestDockerErrors: each says what to do, and is no exit code of the command.
func TestDockerErrors(t *testing.T) {
	dockertest.CLI(t)
	w := newWorld(t)
	w.mount()
	w.finish([]string{"run", "--sandbox", "docker", "--", "true"}, inDocker(t, w.mp)).want(t, exitSandbox, "no image is set", "--image")
	w.docker(w.mp, "--image", "nowhere:1", "--", "true").want(t, exitSandbox, "nowhere:1 is not on this machine", dockertest.CLI(t)+" pull nowhere:1")
	w.docker(w.mp, "--docker", "no-such-docker", "--", "true").want(t, exitSandbox, "no-such-docker was not found")
	w.docker(w.mp, "--workspace", "here", "--", "true").want(t, exitUsage, "absolute path")
	if dockertest.CLI(t) == "docker" {
		w.finish([]string{"run", "--sandbox", "docker", "--image", "x", "--", "true"}, func(c *exec.Cmd) {
			c.Dir = w.mp
			c.Env = append(c.Env, "DOCKER_HOST=unix:///nonexistent/docker.sock")
		}).want(t, exitSandbox, "does not answer", "systemctl start docker")
	}
	// A program of the project is nothing that the daemon would run.
	w.sh("printf '#!/bin/sh\necho ran >/tmp/ran-by-daemon\n' >$M/docker; chmod +x $M/docker")
	w.docker(w.mp, "--docker", w.mp+"/docker", "--", "true").want(t, exitPath, "lies in the project")
	w.wantContainers(0)
	w.unmount()
}

// withDaemon skips the test for an engine that works as the user who calls it, in whose home its images would have to be.
func withDaemon(t *testing.T) {
	t.Helper()
	if cli := dockertest.CLI(t); cli != "docker" {
		t.Skipf("%s has no daemon that is somebody else", cli)
	}
}

// TestDockerMayNotEnter: Docker's daemon is root, whom a user's mount lets in only when it is told to.
func TestDockerMayNotEnter(t *testing.T) {
	withDaemon(t)
	w := newWorldFor(t, ordinaryUser(t))
	w.mount()
	w.docker(w.mp, "--", "true").want(t, exitSandbox, "may not enter the mount", "--allow-other", "user_allow_other")
	w.wantContainers(0)
	w.unmount()
}
