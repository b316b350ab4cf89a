package control

import (
	"context"
	"net/http"
)

// PathContainer takes a ContainerRequest and answers with a Container.
const PathContainer = "/v1/container"

// ContainerRequest announces a container that is about to be made: the daemon has it removed when the
// mount ends, by CLI, an absolute path, with nothing but Env in its environment. Settings, eight hexadecimal digits, tell containers of
// different limits and images apart.
type ContainerRequest struct {
	Carried
	CLI      string   `json:"cli"`
	Env      []string `json:"env"`
	Settings string   `json:"settings"`
}

// Container is the answer: what the container must be called.
type Container struct {
	Name string `json:"name"`
}

// Container announces a container.
func (c *Client) Container(ctx context.Context, r ContainerRequest) (*Container, error) {
	return call[Container](ctx, c, http.MethodPost, PathContainer, r)
}
