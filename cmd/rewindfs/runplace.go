package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/sandbox"
	"github.com/rewindfs/rewindfs/session"
)

// runPlace is where a command runs.
type runPlace struct {
	session *session.Listed
	client  *control.Client
	started bool   // the daemon was started for it
	mount   string // on the host
	project string // where the command sees the mount
	dir     string // its working directory, as it sees it
	hidden  []string
	shown   map[string]string
	name    string // by which the command's rewindfs finds the session
}

// placeFor finds the session for a command, or makes one for run.
func (a *app) placeFor(ctx context.Context, o *runOptions) (*runPlace, error) {
	reg, err := registry()
	if err != nil {
		return nil, err
	}
	all, err := reg.Sessions()
	if err != nil {
		return nil, err
	}
	p := &runPlace{}
	cwd := workingDir()
	if p.session, err = a.sessionFor(ctx, o, all, cwd); err != nil {
		return nil, err
	}
	if p.session == nil {
		if p.session, err = a.startFor(ctx, reg, cwd); err != nil {
			return nil, err
		}
		p.started = true
		all = append(all, *p.session)
	} else if o.verb == "run" && !p.session.Served(ctx) {
		if err := a.startAgain(ctx, p.session); err != nil {
			return nil, err
		}
		p.started = true
	}
	if a.branch != "" {
		b, _ := p.session.At(a.branch) // one that the record does not know of, the daemon may
		p.session = &b
	}
	p.client = a.clientOf(p.session)
	return p, p.locate(ctx, all, cwd)
}

// sessionFor is choose for commands that run: an exec outside of all sessions goes to the only one running, a run
// there is to have a session of its own: nil.
func (a *app) sessionFor(ctx context.Context, o *runOptions, all []session.Listed, cwd string) (*session.Listed, error) {
	said := a.session
	if said == "" {
		said = os.Getenv("REWINDFS_SESSION")
	}
	if said != "" {
		return chooseSaid(ctx, all, said)
	}
	if cwd != "" {
		if l := holding(ctx, all, cwd); l != nil {
			return l, nil
		}
	}
	if o.verb == "run" {
		return nil, nil
	}
	return onlyRunning(ctx, all)
}

// startFor makes a session for the project that dir is in.
func (a *app) startFor(ctx context.Context, reg *session.Registry, dir string) (*session.Listed, error) {
	base, err := projectAt(dir)
	if err != nil {
		return nil, err
	}
	o := &mountOptions{logLevel: "info"}
	so, _, err := o.resolve([]string{base})
	if err != nil {
		return nil, err
	}
	if err := a.startDaemon(ctx, o, so); err != nil {
		return nil, err
	}
	a.note("rewindfs: %s has a session now, shown at %s; what changes there can be taken back", show(so.Base), show(so.Mountpoint))
	all, err := reg.Sessions()
	if err != nil {
		return nil, err
	}
	for i := range all {
		if all[i].Store == so.Store {
			return &all[i], nil
		}
	}
	return nil, fmt.Errorf("the session of %s was started, but is not to be found below %s", so.Base, so.Store)
}

// startAgain starts the daemon of a session that is not mounted, or whose daemon has died, as it was.
func (a *app) startAgain(ctx context.Context, l *session.Listed) error {
	whole := l.Session()
	so := session.Options{
		Name: whole.Name, Base: whole.Base, Mountpoint: whole.Mountpoint, Store: whole.Store,
		Over: whole.Over, AllowOther: whole.AllowOther, CacheMode: whole.CacheMode, Version: version,
	}
	if err := so.Complete(); err != nil {
		return err
	}
	if err := so.Check(); err != nil {
		return err
	}
	a.note("rewindfs: session %s is mounted again, at %s", show(so.Name), show(so.Mountpoint))
	return a.startDaemon(ctx, &mountOptions{logLevel: "info"}, so)
}

// startDaemon starts a daemon, unless somebody else does so at the same time.
func (a *app) startDaemon(ctx context.Context, o *mountOptions, so session.Options) error {
	err := a.background(ctx, o, so)
	if control.CodeOf(err) == control.CodeStoreHeld {
		c := &control.Client{Socket: filepath.Join(so.Store, control.SocketName)}
		defer c.Close()
		if c.Ping(ctx) == nil {
			return nil
		}
	}
	return err
}

// projectMarks are what the top directory of a project has.
var projectMarks = []string{".git", ".hg", ".jj", "rewindfs.toml"}

// projectAt is the project that dir is in: the nearest directory above that looks like one, else dir itself. Neither a home nor the root is one.
func projectAt(dir string) (string, error) {
	if dir == "" {
		return "", failf(exitPath, "the working directory is gone: cd into the project")
	}
	home := ""
	if h, err := os.UserHomeDir(); err == nil {
		if home, err = session.Canonical(h); err != nil {
			home = h
		}
	}
	if dir == "/" || dir == home {
		return "", failf(exitPath, "%s is not taken for a project: cd into one, or name it with: rewindfs mount DIR", show(dir))
	}
	for d := dir; d != "/" && d != home; d = filepath.Dir(d) {
		for _, m := range projectMarks {
			if _, err := os.Lstat(filepath.Join(d, m)); err == nil {
				return d, nil
			}
		}
	}
	return dir, nil
}

// locate says where the command sees what.
func (p *runPlace) locate(ctx context.Context, all []session.Listed, cwd string) error {
	l := p.session
	pinging, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	if err := p.client.Ping(pinging); errors.Is(err, context.DeadlineExceeded) {
		return errors.New(hangs(l))
	} else if err != nil {
		return err
	}
	p.mount, p.project, p.dir = l.Mountpoint, l.Base, l.Base
	switch {
	case holds(l.Mountpoint, cwd) >= 0:
		p.project, p.dir = l.Mountpoint, cwd
	case holds(l.Base, cwd) >= 0:
		p.dir = cwd
	}
	if err := isShown(l); err != nil {
		return err
	}
	p.hide(all)
	return nil
}

// isShown makes sure that the mount is there: without it, a command would write to what lies under it.
func isShown(l *session.Listed) error {
	mounts, err := session.Mounts()
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(mounts, func(m session.MountPoint) bool { return m.Path == l.Mountpoint }) {
		if l.Fork {
			return noSession("branch %s is not mounted: mount it with: rewindfs branch mount %s", show(l.Branch), quoteArg(show(l.Branch)))
		}
		return notMounted(l)
	}
	if state := session.Probe(l.Mountpoint); state != session.StateLive {
		return fmt.Errorf("the mount at %s is %s: see: rewindfs doctor", show(l.Mountpoint), state)
	}
	return nil
}

// hide says which directories the command is not to see, and what of them it is to see in spite of it: of its own session
// the record and, in place of the control socket, the one for agents.
func (p *runPlace) hide(all []session.Listed) {
	var root string
	if r, err := session.StateRoot(); err == nil {
		root = r
		p.hidden = append(p.hidden, r)
	}
	names := map[string]int{}
	for i := range all {
		names[all[i].Name]++
		if root == "" || !strings.HasPrefix(all[i].Store, root+"/") {
			p.hidden = append(p.hidden, all[i].Store)
		}
	}
	p.shown = p.session.ForAgents()
	p.name = p.session.Name
	if p.session.Fork || names[p.name] > 1 {
		p.name = p.session.Mountpoint
	}
}

// spec is the command as the sandbox takes it. Of vars those that are NAME=VALUE are set.
func (p *runPlace) spec(argv, vars []string) sandbox.Spec {
	set := []string{"REWINDFS_SESSION=" + p.name, "PWD=" + p.dir}
	for _, v := range vars {
		if strings.Contains(v, "=") {
			set = append(set, v)
		}
	}
	env := os.Environ()
	for _, v := range set {
		name, _, _ := strings.Cut(v, "=")
		env = slices.DeleteFunc(env, func(old string) bool { return strings.HasPrefix(old, name+"=") })
		env = append(env, v)
	}
	return sandbox.Spec{
		Argv: argv, Env: env, Dir: p.dir, Mount: p.mount, Project: p.project,
		Unseen: p.hidden, Sockets: p.shown,
	}
}
