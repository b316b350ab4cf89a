package main

import (
	"cmp"
	"context"
	"path"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/sandbox"
)

// Values of --workspace: what it is when nothing is said, and a container that has the project where the host has it.
const (
	defaultWorkspace = "/workspace"
	ownPath          = "same"
)

// dockerRules has the flags for containers take the place of the user's rules.
func (o *runOptions) dockerRules(r *sandbox.DockerRules) error {
	r.CLI, r.Image = cmp.Or(o.docker, r.CLI), cmp.Or(o.image, r.Image)
	w := cmp.Or(o.workspace, r.Workspace, defaultWorkspace)
	switch {
	case w == ownPath:
		w = ""
	case !path.IsAbs(w) || path.Clean(w) != w || w == "/":
		return usagef("--workspace %s: name an absolute path, or %s for the project's own", show(w), ownPath)
	}
	r.Workspace = w
	return nil
}

// announces tells the daemon behind c of each container before it is made.
func announces(ctx context.Context, c *control.Client) func(*sandbox.Engine, string) (string, error) {
	return func(e *sandbox.Engine, settings string) (string, error) {
		made, err := c.Container(ctx, control.ContainerRequest{CLI: e.CLI, Env: e.Env, Settings: settings})
		if err != nil {
			return "", err
		}
		return made.Name, nil
	}
}
