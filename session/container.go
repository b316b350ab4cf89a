package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rewindfs/rewindfs/control"
)

// Containers that show a mount hold it: it ends when they have. The command line makes them, having announced them; here they
// are removed, with the mount, or by whoever finds what a killed daemon left.

// containersName is the file of a store that names the containers to be removed.
const containersName = "containers.json"

// heldContainer is one container, and how it is removed.
type heldContainer struct {
	Name       string   `json:"name"`
	Branch     string   `json:"branch"` // whose mount it shows
	Generation uint64   `json:"generation"`
	CLI        string   `json:"cli"`
	Env        []string `json:"env"`
}

// removeTime bounds the removal of containers. A daemon of Docker that is busy takes seconds.
const removeTime = 20 * time.Second

// settingsForm is what Settings of a request look like.
var settingsForm = regexp.MustCompile(`^[0-9a-f]{8}$`)

// Container notes that a container is about to be made, and names it.
func (s *Session) Container(_ context.Context, r *control.ContainerRequest) (*control.Container, error) {
	if !settingsForm.MatchString(r.Settings) {
		return nil, badRequest("the settings of a container are eight hexadecimal digits, not %q", r.Settings)
	}
	if err := s.checkCLI(r.CLI); err != nil {
		return nil, err
	}
	s.heads.Lock() // not while it is being unmounted
	defer s.heads.Unlock()
	if err := s.alive(); err != nil {
		return nil, err
	}
	c := heldContainer{
		Name: s.containerName(r.Settings), Branch: s.o.Branch, Generation: s.Record().Generation,
		CLI: r.CLI, Env: r.Env,
	}
	err := s.changeContainers(func(all []heldContainer) []heldContainer {
		return append(slices.DeleteFunc(all, func(h heldContainer) bool { return h.Name == c.Name }), c)
	})
	if err != nil {
		return nil, fmt.Errorf("note a container: %w", err)
	}
	return &control.Container{Name: c.Name}, nil
}

// checkCLI makes sure that what the daemon will run is a program of the host. Nothing in a mount may be run by the
// daemon that serves it, and nothing there is the user's word.
func (s *Session) checkCLI(path string) error {
	real, err := filepath.EvalSymlinks(path)
	if err != nil || !filepath.IsAbs(path) {
		return badPath("the command for containers must be an absolute path, and be there: %q", path)
	}
	for _, b := range s.sessions() {
		for _, dir := range []string{b.o.Mountpoint, b.o.Base, s.o.Store} {
			if inside(real, dir) || inside(path, dir) {
				return badPath("the command for containers, %s, lies in the project: name one outside of it", path)
			}
		}
	}
	return nil
}

// containerName names the container of this branch, mount and generation with these settings.
func (s *Session) containerName(settings string) string {
	plain := strings.Map(func(r rune) rune {
		if r < 0x80 && (r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z') {
			return r
		}
		return '_'
	}, s.o.Name)
	return fmt.Sprintf("rewindfs-%s-%s-%d-%s", plain[:min(len(plain), 30)], shortHash(s.o.Store+"\x00"+s.o.Branch), s.Record().Generation, settings)
}

// readContainers reads the file of a store; none is an empty list.
func readContainers(store string) ([]heldContainer, error) {
	b, err := os.ReadFile(filepath.Join(store, containersName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var all []heldContainer
	if err == nil {
		err = json.Unmarshal(b, &all)
	}
	if err != nil {
		return nil, fmt.Errorf("read the containers of the store %s: %w", store, err)
	}
	return all, nil
}

func writeContainers(store string, all []heldContainer) error {
	path := filepath.Join(store, containersName)
	if len(all) == 0 {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("forget the containers of the store: %w", err)
		}
		return nil
	}
	b, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the containers of the store: %w", err)
	}
	return writeFile(path, append(b, '\n'))
}

func (s *Session) changeContainers(change func([]heldContainer) []heldContainer) error {
	s.containersMu.Lock()
	defer s.containersMu.Unlock()
	all, err := readContainers(s.o.Store)
	if err != nil {
		return err
	}
	return writeContainers(s.o.Store, change(all))
}

// containers lists those for which want says yes.
func (s *Session) containers(want func(heldContainer) bool) []heldContainer {
	s.containersMu.Lock()
	defer s.containersMu.Unlock()
	all, err := readContainers(s.o.Store)
	if err != nil {
		s.log.Error("containers may be left behind", "error", err)
	}
	return slices.DeleteFunc(all, func(h heldContainer) bool { return !want(h) })
}

// ownContainers are those that show the mount of s.
func (s *Session) ownContainers() []heldContainer {
	return s.containers(func(h heldContainer) bool { return h.Branch == s.o.Branch })
}

// endContainers removes the containers that show the mount of s. They stay noted until the mount has ended: one may be on its way.
func (s *Session) endContainers() {
	if _, err := removeAll(s.ownContainers()); err != nil {
		s.log.Warn("a container that shows the mount cannot be removed", "error", err)
	}
}

// forgetContainers removes, and then no longer notes, those for which want says yes.
func (s *Session) forgetContainers(want func(heldContainer) bool) {
	gone, err := removeAll(s.containers(want))
	if err != nil {
		s.log.Warn("a container cannot be removed; the next mount tries again", "error", err)
	}
	if len(gone) == 0 {
		return
	}
	err = s.changeContainers(func(all []heldContainer) []heldContainer {
		return slices.DeleteFunc(all, func(h heldContainer) bool { return slices.Contains(gone, h.Name) })
	})
	if err != nil {
		s.log.Warn("removed containers are still noted", "error", err)
	}
}

// dropStaleContainers removes what earlier daemons left.
func (s *Session) dropStaleContainers() {
	now := s.Record().Generation
	stale := func(h heldContainer) bool { return h.Generation < now }
	if len(s.containers(stale)) > 0 {
		s.background.Go(func() { s.forgetContainers(stale) })
	}
}

// RemoveContainers removes the containers of a store that no daemon serves.
func RemoveContainers(store string) error {
	all, err := readContainers(store)
	if err != nil || len(all) == 0 {
		return err
	}
	gone, err := removeAll(all)
	left := slices.DeleteFunc(all, func(h heldContainer) bool { return slices.Contains(gone, h.Name) })
	return errors.Join(err, writeContainers(store, left))
}

// removeAll removes containers, all at once, and returns the names of those that are gone.
func removeAll(all []heldContainer) (gone []string, err error) {
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, h := range all {
		wg.Go(func() { errs[i] = h.remove() })
	}
	wg.Wait()
	for i, h := range all {
		if errs[i] == nil {
			gone = append(gone, h.Name)
		}
	}
	return gone, errors.Join(errs...)
}

// remove removes a container with all that runs in it. One that is not there is removed.
func (h *heldContainer) remove() error {
	ctx, cancel := context.WithTimeout(context.Background(), removeTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, h.CLI, "rm", "--force", h.Name)
	cmd.Env, cmd.Dir = h.Env, "/"
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	said := strings.ToLower(string(out))
	if err == nil || strings.Contains(said, "no such container") || strings.Contains(said, "no container with name") {
		return nil
	}
	return fmt.Errorf("%s rm --force %s: %w: %s", h.CLI, h.Name, err, strings.TrimSpace(string(out)))
}
