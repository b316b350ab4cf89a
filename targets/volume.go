package targets

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"

	"github.com/rewindfs/rewindfs/journal"
)

// What a volume is reached with, where nothing else is said.
const (
	DefaultDocker = "docker"
	DefaultImage  = "busybox"
)

// named reports whether s has letters and digits and, behind its beginning, those of extra: so it can be neither a path nor an option.
func named(s, extra string, most int) bool {
	if s == "" || len(s) > most {
		return false
	}
	for i, c := range s {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !letter && (i == 0 || !strings.ContainsRune(extra, c)) {
			return false
		}
	}
	return true
}

// Volume is the target that is a volume of the docker-compatible program docker, reached by a container of image. Either may be "".
func Volume(name, docker, image string) (journal.Copy, error) {
	c := journal.Copy{Kind: journal.TargetVolume, Name: []byte(name), Docker: docker, Image: image}
	if c.Docker == "" {
		c.Docker = DefaultDocker
	}
	if c.Image == "" {
		c.Image = DefaultImage
	}
	switch {
	case !named(name, "_.-", 255):
		return c, fmt.Errorf("%q cannot be the name of a volume", name)
	case !named(c.Image, "_.-/:@", 512):
		return c, fmt.Errorf("%q cannot be the name of an image", c.Image)
	}
	return c, nil
}

// inVolume is the container that has a volume, and nothing else, at /volume. It is gone when its command ends.
func inVolume(c *journal.Copy, access string, cmd ...string) []string {
	args := []string{"run", "--rm", "-i", "--pull", "never", "--network", "none", "--cap-drop", "ALL", "--cap-add", "CHOWN", "--cap-add", "DAC_OVERRIDE",
		"--cap-add", "FOWNER", "--cap-add", "FSETID", "--cap-add", "MKNOD", "--security-opt", "no-new-privileges", "-v", string(c.Name) + ":/volume" + access, c.Image}
	return append(args, cmd...)
}

// docker runs the volume's program. Of what it says about a failure the end is in the error.
func docker(ctx context.Context, c *journal.Copy, in io.Reader, out io.Writer, args ...string) error {
	cmd := exec.CommandContext(ctx, c.Docker, args...)
	var said bytes.Buffer
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = "/", in, out, &said
	if err := cmd.Run(); err != nil {
		text := strings.TrimSpace(said.String())
		if len(text) > 500 {
			text = "… " + text[len(text)-500:]
		}
		return fmt.Errorf("%s %s: %w: %s", c.Docker, args[0], err, text)
	}
	return nil
}

// volumeThere reports whether the volume exists.
func volumeThere(ctx context.Context, c *journal.Copy) (bool, error) {
	var names bytes.Buffer
	if err := docker(ctx, c, nil, &names, "volume", "ls", "-q"); err != nil {
		return false, err
	}
	for name := range strings.FieldsSeq(names.String()) {
		if name == string(c.Name) {
			return true, nil
		}
	}
	return false, nil
}

// takeVolume fills in c.
func takeVolume(ctx context.Context, c *journal.Copy, put func(io.Reader) (Content, error)) error {
	there, err := volumeThere(ctx, c)
	if err != nil || !there {
		c.Absent = err == nil
		return err
	}
	r, w := io.Pipe()
	go func() {
		w.CloseWithError(docker(ctx, c, nil, w, inVolume(c, ":ro", "tar", "-C", "/volume", "-cf", "-", ".")...))
	}()
	content, err := put(r)
	err = errors.Join(err, r.Close())
	c.Size, c.Digest = content.Size, content.Digest
	return err
}

// volumeFree returns an error when running containers have the volume: they would have it changed under them, and write to it meanwhile.
func volumeFree(ctx context.Context, c *journal.Copy) error {
	var users bytes.Buffer
	if err := docker(ctx, c, nil, &users, "ps", "--filter", "volume="+string(c.Name), "--format", "{{.Names}}"); err != nil {
		return err
	}
	if names := strings.Fields(users.String()); len(names) > 0 {
		return fmt.Errorf("%w: stop the containers that have it first: %s", ErrBusy, strings.Join(names, ", "))
	}
	return nil
}

// putVolume replaces what is in the volume. Preconditions: Hold.
func (s *Store) putVolume(ctx context.Context, c *journal.Copy) error {
	there, err := volumeThere(ctx, c)
	switch {
	case err != nil, c.Absent && !there:
		return err
	case c.Absent:
		return docker(ctx, c, nil, io.Discard, "volume", "rm", string(c.Name))
	}
	r, w := io.Pipe()
	go func() { w.CloseWithError(s.Read(Content{c.Size, c.Digest}, w)) }()
	err = docker(ctx, c, r, io.Discard, inVolume(c, "", "sh", "-c", "cd /volume && rm -rf ./..?* ./.[!.]* ./* && exec tar -xpf -")...)
	return errors.Join(err, r.Close())
}
