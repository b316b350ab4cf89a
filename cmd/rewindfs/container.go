package main

import (
	"context"
	"path"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/sandbox"
)

// ownPath is the value of --workspace for a container that has the project where the host has it.
const ownPath = "same"

// dockerRules are the rules for a container. The daemon of the session behind c is told of each before it is made.
func (o *runOptions) dockerRules(ctx context.Context, c *control.Client) (sandbox.DockerRules, error) {
	r := sandbox.DockerRules{CLI: o.docker, Image: o.image, Workspace: o.workspace}
	switch {
	case o.workspace == ownPath:
		r.Workspace = ""
	case !path.IsAbs(o.workspace) || path.Clean(o.workspace) != o.workspace || o.workspace == "/":
		return r, usagef("--workspace %s: name an absolute path, or %s for the project's own", show(o.workspace), ownPath)
	}
	r.Register = func(e *sandbox.Engine, settings string) (string, error) {
		made, err := c.Container(ctx, control.ContainerRequest{CLI: e.CLI, Env: e.Env, Settings: settings})
		if err != nil {
			return "", err
		}
		return made.Name, nil
	}
	return r, nil
}
