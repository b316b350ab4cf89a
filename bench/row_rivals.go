package bench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// rival is one way to make a checkpoint. It works in a tree of its own.
type rival interface {
	// About names it and says which commands are timed.
	About() (name, how string)
	// Open makes the tree ready and returns its root.
	Open(ctx context.Context, e *Env, f *fixture) (root string, err error)
	// Checkpoint keeps the state of the tree; this is what is timed.
	Checkpoint(ctx context.Context, i int) error
	// Stored is what all checkpoints together take on the disk.
	Stored(ctx context.Context) (int64, error)
	// Close ends it; it may be called without Open.
	Close() error
}

// rivals is the row that compares ways to make a checkpoint of the project's tree.
type rivals struct{}

func (rivals) ID() string    { return "rivals" }
func (rivals) Title() string { return "a checkpoint of the tree, by other means" }

func allRivals() []rival {
	return []rival{&rewindRival{}, &copyRival{}, &reflinkRival{}, &gitRival{}, &gitRival{stash: true}, &overlayRival{}, &btrfsRival{}}
}

const changedPerCheckpoint = 10

func (r rivals) Run(ctx context.Context, e *Env) error {
	t, err := projectTree(ctx, e)
	if err != nil {
		return err
	}
	e.Report.Tree = t.about
	victims, err := someFiles(t.dir, changedPerCheckpoint)
	if err != nil {
		return err
	}
	type entrant struct {
		rival
		root   string
		result Rival
	}
	var in []*entrant
	defer func() {
		for _, x := range in {
			if err := x.Close(); err != nil {
				e.Skip("clean up "+x.result.Name, err)
			}
		}
	}()
	for _, v := range allRivals() {
		x := &entrant{rival: v}
		x.result.Name, x.result.How = v.About()
		e.Progress.Step("preparing " + x.result.Name)
		if x.root, err = v.Open(ctx, e, t.fixture); err != nil {
			err = errors.Join(err, v.Close())
			if x.result.Name == Rewindfs || ctx.Err() != nil {
				return fmt.Errorf("%s: %w", x.result.Name, err)
			}
			e.Skip(x.result.Name+" as a checkpoint", err) // a rival that cannot start is no reason to stop
			continue
		}
		in = append(in, x)
	}
	rounds := pick(e.Opts, 7, 3)
	for i := range rounds {
		for k := range in {
			x := in[(k+i)%len(in)]
			e.Progress.Step(fmt.Sprintf("%s %d/%d", x.result.Name, i+1, rounds))
			took, err := r.once(ctx, e, x.rival, x.root, victims, i)
			if err != nil {
				return fmt.Errorf("%s: %w", x.result.Name, err)
			}
			x.result.Samples = append(x.result.Samples, took)
		}
	}
	var mine []float64
	for _, x := range in {
		if x.result.Name == Rewindfs {
			mine = x.result.Samples
		}
	}
	for _, x := range in {
		stored, err := x.Stored(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", x.result.Name, err)
		}
		x.result.Stored = stored / int64(rounds)
		x.result.P50 = Num(median(x.result.Samples))
		x.result.Ratio = Num(pairedRatio(x.result.Samples, mine))
		e.Report.Rivals = append(e.Report.Rivals, x.result)
	}
	return nil
}

// once changes a few files and times a checkpoint.
func (rivals) once(ctx context.Context, e *Env, v rival, root string, victims []string, i int) (float64, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, e.Opts.timeout(), fmt.Errorf("not done within %s", e.Opts.timeout()))
	defer cancel()
	for k, name := range victims {
		if err := overwrite(filepath.Join(root, name), 100, i*len(victims)+k); err != nil {
			return 0, fmt.Errorf("change a file: %w", err)
		}
	}
	syncDisk(e.Work)
	return seconds(func() error { return v.Checkpoint(ctx, i) })
}

// someFiles picks n regular files of 4 to 64 KiB below dir, spread over the tree.
func someFiles(dir string, n int) ([]string, error) {
	var all []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == ".git":
			return fs.SkipDir
		case !d.Type().IsRegular():
			return nil
		}
		info, err := d.Info()
		if err == nil && info.Size() >= 4096 && info.Size() <= 64<<10 && info.Mode().Perm()&0o200 != 0 {
			rel, err := filepath.Rel(dir, p)
			all = append(all, rel)
			return err
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look for files to change: %w", err)
	}
	if len(all) == 0 {
		return nil, skipf("the tree has no writable file of 4 to 64 KiB to change")
	}
	var some []string
	for i := range min(n, len(all)) {
		some = append(some, all[i*len(all)/min(n, len(all))])
	}
	return some, nil
}

// ownCopy is a copy of the tree on the bare disk.
type ownCopy struct {
	dir, root string
	close     func() error
}

func (o *ownCopy) Open(ctx context.Context, e *Env, f *fixture) (string, error) {
	size, err := diskUsage(f.dir)
	if err != nil {
		return "", err
	}
	if err := e.Room(10 * size); err != nil {
		return "", err
	}
	if o.dir, err = e.Dir("rival"); err != nil {
		return "", err
	}
	o.root = filepath.Join(o.dir, "tree")
	dir := o.dir
	o.close = e.Defer(func() error { return e.discard(dir) })
	return o.root, firstError(mkdir(o.root), copyTree(ctx, f.dir, o.root))
}

func (o *ownCopy) Close() error {
	if o.close == nil {
		return nil
	}
	return o.close()
}

// rewindRival is rewindfs itself.
type rewindRival struct{ ses *session }

func (*rewindRival) About() (string, string) { return Rewindfs, "rewindfs checkpoint" }

func (r *rewindRival) Open(ctx context.Context, e *Env, f *fixture) (root string, err error) {
	if r.ses, err = newSession(ctx, e, f.dir, "through"); err != nil {
		return "", err
	}
	return r.ses.mnt, nil
}

func (r *rewindRival) Checkpoint(ctx context.Context, i int) error {
	_, _, err := r.ses.checkpoint(ctx, fmt.Sprintf("rival-%d", i))
	return err
}

func (r *rewindRival) Stored(ctx context.Context) (int64, error) { return r.ses.storedAtRest(ctx) }

func (r *rewindRival) Close() error {
	if r.ses == nil {
		return nil
	}
	return r.ses.close()
}

// copyRival copies the tree.
type copyRival struct {
	ownCopy
	n int
}

func (*copyRival) About() (string, string) { return "cp -a", "cp -a TREE COPY" }

func (c *copyRival) copyDir(i int) string { return filepath.Join(c.dir, fmt.Sprintf("copy-%d", i)) }

func (c *copyRival) Checkpoint(ctx context.Context, i int) error {
	c.n = i + 1
	return command{args: []string{"cp", "-a", "--reflink=never", c.root, c.copyDir(i)}}.run(ctx)
}

func (c *copyRival) Stored(context.Context) (sum int64, err error) {
	for i := range c.n {
		n, err := diskUsage(c.copyDir(i))
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// gitRival commits the tree, or stashes what changed and takes it back.
type gitRival struct {
	ownCopy
	stash  bool
	before int64
}

func (g *gitRival) About() (string, string) {
	if g.stash {
		return "git stash", "git stash push -u && git stash apply"
	}
	return "git commit", "git add -A && git commit"
}

func (g *gitRival) Open(ctx context.Context, e *Env, f *fixture) (string, error) {
	if !have("git") {
		return "", skipf("git is not installed")
	}
	root, err := g.ownCopy.Open(ctx, e, f)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(filepath.Join(root, ".git")); err != nil {
		if err := commitAll(ctx, root); err != nil {
			return "", err
		}
	}
	// The copy has other inode numbers and change times than the index says.
	if err := git(root, "status", "--porcelain").run(ctx); err != nil {
		return "", err
	}
	g.before, err = diskUsage(filepath.Join(root, ".git"))
	return root, err
}

func (g *gitRival) Checkpoint(ctx context.Context, i int) error {
	if g.stash {
		return firstError(git(g.root, "stash", "push", "-u", "-q").run(ctx), git(g.root, "stash", "apply", "-q").run(ctx))
	}
	return firstError(git(g.root, "add", "-A").run(ctx), git(g.root, "commit", "-q", "-m", fmt.Sprint(i)).run(ctx))
}

func (g *gitRival) Stored(context.Context) (int64, error) {
	n, err := diskUsage(filepath.Join(g.root, ".git"))
	return n - g.before, err
}

// overlayRival makes the upper directory a lower one and mounts anew.
type overlayRival struct {
	dir, mnt string
	lower    []string // uppermost first
	uppers   []string
	close    func() error
}

func (*overlayRival) About() (string, string) {
	return "overlayfs, remounted", "umount; mount with the upper directory as one more lower"
}

func (o *overlayRival) Open(_ context.Context, e *Env, f *fixture) (string, error) {
	if !e.Root {
		return "", skipf("only root can mount overlayfs here")
	}
	dir, err := e.Dir("ov") // short: all directories have to fit into one page of options
	if err != nil {
		return "", err
	}
	o.dir, o.mnt, o.lower = dir, filepath.Join(dir, "mnt"), []string{f.dir}
	if err := mkdir(o.mnt); err != nil {
		return "", err
	}
	o.close = e.Defer(func() error { return errors.Join(unmount(o.mnt), e.discard(dir)) })
	return o.mnt, o.mount()
}

// mount puts a new upper directory on top.
func (o *overlayRival) mount() error {
	n := len(o.uppers)
	upper, work := filepath.Join(o.dir, fmt.Sprintf("u%d", n)), filepath.Join(o.dir, fmt.Sprintf("w%d", n))
	if err := firstError(mkdir(upper), mkdir(work), mountOverlay(o.lower, upper, work, o.mnt)); err != nil {
		return err
	}
	o.uppers = append(o.uppers, upper)
	o.lower = append([]string{upper}, o.lower...)
	return nil
}

func (o *overlayRival) Checkpoint(context.Context, int) error {
	return firstError(unmount(o.mnt), o.mount())
}

func (o *overlayRival) Stored(context.Context) (sum int64, err error) {
	for _, u := range o.uppers {
		n, err := diskUsage(u)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

func (o *overlayRival) Close() error {
	if o.close == nil {
		return nil
	}
	return o.close()
}

// onBtrfs is a copy of the tree in a subvolume of a btrfs.
type onBtrfs struct {
	disk   *loopDisk
	before int64
}

func (b *onBtrfs) Open(ctx context.Context, e *Env, f *fixture) (string, error) {
	size, err := diskUsage(f.dir)
	if err != nil {
		return "", err
	}
	if b.disk, err = newBtrfs(ctx, e, 2*size+1<<30); err != nil {
		return "", err
	}
	root := filepath.Join(b.disk.mnt, "tree")
	err = firstError(command{args: []string{"btrfs", "subvolume", "create", root}}.run(ctx), copyTree(ctx, f.dir, root))
	if err != nil {
		return "", err
	}
	b.before, err = b.disk.used()
	return root, err
}

func (b *onBtrfs) at(name string) string { return filepath.Join(b.disk.mnt, name) }

func (b *onBtrfs) Stored(context.Context) (int64, error) {
	n, err := b.disk.used()
	return n - b.before, err
}

func (b *onBtrfs) Close() error {
	if b.disk == nil {
		return nil
	}
	return b.disk.close()
}

// btrfsRival snapshots the subvolume.
type btrfsRival struct{ onBtrfs }

func (*btrfsRival) About() (string, string) {
	return "btrfs snapshot", "btrfs subvolume snapshot -r, on a loop device"
}

func (b *btrfsRival) Checkpoint(ctx context.Context, i int) error {
	return command{args: []string{"btrfs", "subvolume", "snapshot", "-r", b.at("tree"), b.at(fmt.Sprintf("snapshot-%d", i))}}.run(ctx)
}

// reflinkRival copies the tree with shared blocks, where it is if that disk can, else on a btrfs.
type reflinkRival struct {
	own   ownCopy
	btrfs onBtrfs
	root  string
	free  int64
}

func (*reflinkRival) About() (string, string) {
	return "cp --reflink", "cp -a --reflink=always TREE COPY, on btrfs where the disk cannot"
}

func (r *reflinkRival) Open(ctx context.Context, e *Env, f *fixture) (root string, err error) {
	if canReflink(e.Work) {
		root, err = r.own.Open(ctx, e, f)
	} else {
		root, err = r.btrfs.Open(ctx, e, f)
	}
	if err != nil {
		return "", err
	}
	r.root = root
	r.free, err = r.used()
	return root, err
}

// used asks the file system, since shared blocks show in the size of every copy.
func (r *reflinkRival) used() (int64, error) { return (&loopDisk{mnt: filepath.Dir(r.root)}).used() }

func (r *reflinkRival) Checkpoint(ctx context.Context, i int) error {
	return command{args: []string{"cp", "-a", "--reflink=always", r.root, filepath.Join(filepath.Dir(r.root), fmt.Sprintf("copy-%d", i))}}.run(ctx)
}

func (r *reflinkRival) Stored(context.Context) (int64, error) {
	n, err := r.used()
	return n - r.free, err
}

func (r *reflinkRival) Close() error { return errors.Join(r.own.Close(), r.btrfs.Close()) }
