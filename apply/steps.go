package apply

// steps lists what is to be done on the host, directories last. No step's path lies below that of another one,
// but for those about directories themselves.
func (p *planner) steps() ([]*step, error) {
	var all []*step
	p.stepsBelow(p.root, &all)
	p.root.touched = true // the stage comes and goes in it
	err := p.root.each(func(it *item) error {
		s, err := p.dirStep(it)
		if s != nil {
			all = append(all, s)
		}
		return err
	})
	for i, s := range all {
		s.I = i
	}
	return all, err
}

func (p *planner) stepsBelow(it *item, all *[]*step) {
	if it.verdict == vApply && !(isDir(it.want) && isDir(it.haveAttr())) {
		s := &step{Op: opSwap, Path: []byte(it.path), it: it}
		switch {
		case it.have == nil:
			s.Op = opNew
		case it.want == nil:
			s.Op = opGone
		}
		if it.have != nil {
			s.Old = it.have.Ino
			if isDir(it.haveAttr()) && !p.asRoot && it.have.Mode&0o200 == 0 {
				s.Mode = it.have.Mode
			}
		}
		*all = append(*all, s)
		it.up.touched = true
		return
	}
	for _, k := range it.sorted() {
		p.stepsBelow(k, all)
	}
}

// dirStep is the step about a directory itself, nil for none. Entries that come and go move its times: it gets
// those of the checkpoint, if nobody else had moved them.
func (p *planner) dirStep(it *item) (*step, error) {
	if !isDir(it.want) {
		return nil, nil
	}
	s := &step{Op: opDir, Path: []byte(it.path), it: it}
	there := isDir(it.haveAttr())
	if there && it.verdict == vApply {
		xs, err := p.wantXattrs(it)
		if err != nil {
			return nil, err
		}
		s.Meta = &meta{Mode: it.want.Mode, UID: it.want.UID, GID: it.want.GID, Xattrs: map[string][]byte{}, All: true}
		for k, v := range xs {
			s.Meta.Xattrs[k] = []byte(v)
		}
	}
	if !there && it.verdict == vApply && it.up.have != nil && p.lowered(it) {
		s.Meta = &meta{Mode: it.want.Mode, UID: it.want.UID, GID: it.want.GID}
	}
	if there && (it.touched || it.verdict == vApply) {
		s.Was = timesOf(it.haveAttr())
		s.Set = s.Was
		// Forbidden by the tree itself, or allowed by it: not by somebody on the host.
		if tree := it.verdict == vApply || it.want.Mode == it.have.Mode; tree && it.touched && it.path != "" && !p.asRoot && it.have.Mode&0o300 != 0o300 {
			s.Mode = it.have.Mode
		}
		if it.touched && p.ownTimes(it) {
			s.Set = timesOf(it.want)
		}
	}
	if s.Meta == nil && s.Set == nil {
		return nil, nil
	}
	return s, nil
}

// ownTimes reports whether the times of a directory on the host are those that the layers were built on, or that an
// earlier commit left.
func (p *planner) ownTimes(it *item) bool {
	switch {
	case it.rec != nil && !it.rec.none:
		return it.rec.host.mtime == it.have.Mtime
	case it.base != nil:
		built, err := p.built(it)
		if err == nil && built.Known {
			return built.Mtime == it.have.Mtime
		}
		return it.base.Mtime == it.have.Mtime
	}
	return p.r.Whole
}

// lowered reports whether a new directory must be writable for as long as it moves: renaming one to another
// directory writes to it.
func (p *planner) lowered(it *item) bool { return !p.asRoot && it.want.Mode&0o200 == 0 }

// keepPaths lists what is to be kept of the base before the steps.
func (p *planner) keepPaths(steps []*step) (paths []string) {
	for _, s := range steps {
		if s.Op == opDir {
			if isDir(s.it.haveAttr()) && s.it.path != "" {
				paths = append(paths, s.it.path+"/")
			}
			continue
		}
		paths = append(paths, s.it.path)
	}
	_ = p.root.each(func(it *item) error {
		if it.link != nil && it.link.verdict != vApply {
			paths = append(paths, it.link.path) // gets one name more
		}
		return nil
	})
	return paths
}

// brought calls fn for what is on the host after the steps as we want it: what they bring, and what it was linked to.
func (p *planner) brought(steps []*step, fn func(*item) error) error {
	linked := map[*item]bool{}
	below := func(it *item) error {
		if it.link != nil && it.link.verdict != vApply && !it.link.outside && !linked[it.link] {
			linked[it.link] = true
			if err := fn(it.link); err != nil {
				return err
			}
		}
		if it.verdict != vApply {
			return nil
		}
		return fn(it)
	}
	for _, s := range steps {
		var err error
		switch {
		case s.Op != opDir:
			err = s.it.each(below)
		case isDir(s.it.haveAttr()):
			err = fn(s.it)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
