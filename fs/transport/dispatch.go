package transport

import (
	"bytes"
	"context"
	"log/slog"
	"syscall"
	"time"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
)

const (
	sizeIn  = int(unsafe.Sizeof(fuse.InHeader{}))
	sizeOut = int(unsafe.Sizeof(fuse.OutHeader{}))
)

func (w *worker) header() *fuse.InHeader { return inArg[fuse.InHeader](w) }

// inArg is the fixed part of the request.
func inArg[T any](w *worker) *T { return (*T)(unsafe.Pointer(&w.in[0])) }

// outArg is the fixed part of the reply, zeroed.
func outArg[T any](w *worker) *T {
	p := (*T)(unsafe.Pointer(&w.out[sizeOut]))
	*p = *new(T)
	return p
}

func size[T any]() int { return int(unsafe.Sizeof(*new(T))) }

// name is the name at offset off of a request, and the offset behind it.
func (w *worker) name(off int) (string, int) {
	rest := w.in[off:w.inLen]
	n := bytes.IndexByte(rest, 0)
	if n < 0 {
		n = len(rest)
	}
	return string(rest[:n]), off + n + 1
}

// finish completes the reply, whose body is n bytes when st is OK, and returns its length.
func (w *worker) finish(st fuse.Status, n int) int {
	if st != fuse.OK {
		n = 0
	}
	h := (*fuse.OutHeader)(unsafe.Pointer(&w.out[0]))
	*h = fuse.OutHeader{Length: uint32(sizeOut + n), Status: int32(-st), Unique: w.header().Unique}
	return sizeOut + n
}

// serve answers the request of n bytes in w.in.
func (w *worker) serve(n int) {
	w.inLen = n
	w.c.counts.add(w.header().Opcode)
	if w.c.debug {
		w.serveTraced()
		return
	}
	if r := w.answer(); r > 0 {
		w.reply(r)
	}
}

// answer puts the reply in w.out and returns its length, 0 for none.
//
// The common opcodes are decoded here, which spares each of them several allocations
// and READ a copy of its data, and everything that makes a name, because
// go-fuse has a name of its own in the root (.go-fuse-epoll-hack). go-fuse decodes the rest. A handler
// called from here gets no cancel channel: it must not wait for anything but I/O.
func (w *worker) answer() (length int) {
	defer func() {
		if v := recover(); v != nil {
			length = w.finish(w.c.panicked(v), 0)
		}
	}()
	h := w.header()
	if w.inLen < sizeIn || h.TotalExtlen != 0 || w.c.tune.generic {
		return w.generic()
	}
	fs := w.c.fs
	switch h.Opcode {
	case opForget:
		fs.Forget(h.NodeId, inArg[fuse.ForgetIn](w).Nlookup)
		return 0
	case opBatchForget:
		w.batchForget()
		return 0
	case opGetattr:
		return w.finish(fs.GetAttr(nil, inArg[fuse.GetAttrIn](w), outArg[fuse.AttrOut](w)), size[fuse.AttrOut]())
	case opStatx:
		return w.finish(fs.Statx(nil, inArg[fuse.StatxIn](w), outArg[fuse.StatxOut](w)), size[fuse.StatxOut]())
	case opSetattr:
		return w.finish(fs.SetAttr(nil, inArg[fuse.SetAttrIn](w), outArg[fuse.AttrOut](w)), size[fuse.AttrOut]())
	case opReadlink:
		target, st := fs.Readlink(nil, h)
		return w.finish(st, copy(w.out[sizeOut:], target))
	case opLookup, opMknod, opMkdir, opSymlink, opLink, opUnlink, opRmdir, opRename, opRename2:
		return w.answerName(h.Opcode)
	case opRead, opWrite, opReaddir, opReaddirplus, opGetxattr:
		return w.answerData(h.Opcode)
	}
	return w.generic()
}

// answerName answers requests that carry names.
func (w *worker) answerName(op uint32) int {
	fs, h := w.c.fs, w.header()
	switch op {
	case opLookup:
		name, _ := w.name(sizeIn)
		return w.finish(fs.Lookup(nil, h, name, outArg[fuse.EntryOut](w)), size[fuse.EntryOut]())
	case opMknod:
		name, _ := w.name(size[fuse.MknodIn]())
		return w.finish(fs.Mknod(nil, inArg[fuse.MknodIn](w), name, outArg[fuse.EntryOut](w)), size[fuse.EntryOut]())
	case opMkdir:
		name, _ := w.name(size[fuse.MkdirIn]())
		return w.finish(fs.Mkdir(nil, inArg[fuse.MkdirIn](w), name, outArg[fuse.EntryOut](w)), size[fuse.EntryOut]())
	case opSymlink:
		name, off := w.name(sizeIn)
		target, _ := w.name(off)
		return w.finish(fs.Symlink(nil, h, target, name, outArg[fuse.EntryOut](w)), size[fuse.EntryOut]())
	case opLink:
		name, _ := w.name(size[fuse.LinkIn]())
		return w.finish(fs.Link(nil, inArg[fuse.LinkIn](w), name, outArg[fuse.EntryOut](w)), size[fuse.EntryOut]())
	case opUnlink:
		name, _ := w.name(sizeIn)
		return w.finish(fs.Unlink(nil, h, name), 0)
	case opRmdir:
		name, _ := w.name(sizeIn)
		return w.finish(fs.Rmdir(nil, h, name), 0)
	}
	// RENAME has only the first field that RENAME2 has.
	in, off := *inArg[fuse.RenameIn](w), size[fuse.RenameIn]()
	if op == opRename {
		in.Flags, off = 0, sizeIn+8
	}
	from, off := w.name(off)
	to, _ := w.name(off)
	return w.finish(fs.Rename(nil, &in, from, to), 0)
}

// answerData answers requests that carry or want bytes.
func (w *worker) answerData(op uint32) int {
	fs, body := w.c.fs, w.out[sizeOut:sizeOut+maxIO]
	switch op {
	case opWrite:
		in, out := inArg[fuse.WriteIn](w), outArg[fuse.WriteOut](w)
		var st fuse.Status
		out.Size, st = fs.Write(nil, in, w.in[size[fuse.WriteIn]():w.inLen])
		return w.finish(st, size[fuse.WriteOut]())
	case opGetxattr:
		in := inArg[fuse.GetXAttrIn](w)
		name, _ := w.name(size[fuse.GetXAttrIn]())
		n, st := fs.GetXAttr(nil, &in.InHeader, name, body[:min(int(in.Size), maxIO)])
		if in.Size > 0 {
			return w.finish(st, int(n))
		}
		if st == fuse.ERANGE {
			st = fuse.OK // only the size was asked for
		}
		outArg[fuse.GetXAttrOut](w).Size = n
		return w.finish(st, size[fuse.GetXAttrOut]())
	}
	in := inArg[fuse.ReadIn](w)
	body = body[:min(int(in.Size), maxIO)]
	if op != opRead {
		list := fuse.NewDirEntryList(body, in.Offset)
		if op == opReaddir {
			return w.finish(fs.ReadDir(nil, in, list), len(list.Bytes()))
		}
		return w.finish(fs.ReadDirPlus(nil, in, list), len(list.Bytes()))
	}
	res, st := fs.Read(nil, in, body)
	if st != fuse.OK {
		return w.finish(st, 0)
	}
	data, st := res.Bytes(body)
	n := len(data)
	if n > 0 && &data[0] != &body[0] {
		n = copy(body, data)
	}
	res.Done()
	return w.finish(st, n)
}

func (w *worker) batchForget() {
	const head = 8 // count and padding behind the header
	type one struct{ node, n uint64 }
	count := *(*uint32)(unsafe.Pointer(&w.in[sizeIn]))
	for off := sizeIn + head; count > 0 && off+size[one]() <= w.inLen; off += size[one]() {
		f := (*one)(unsafe.Pointer(&w.in[off]))
		w.c.fs.Forget(f.node, f.n)
		count--
	}
}

// generic has go-fuse decode the request.
func (w *worker) generic() int {
	op := w.header().Opcode
	w.iov[0][0], w.iov[1][0] = w.in[:w.inLen], w.out
	n, st := w.c.proto.HandleRequest(w.iov[0][:], w.iov[1][:])
	if op == opInterrupt {
		// go-fuse answers EAGAIN for a request it does not know, and the kernel would ask again
		// and again until that one is answered. No answer is also right.
		return 0
	}
	if n == 0 && st != fuse.OK {
		return w.finish(fuse.EIO, 0) // it could not be parsed; an answer there must be
	}
	return n
}

// serveTraced is serve with a line in the log.
func (w *worker) serveTraced() {
	h := *w.header()
	start := time.Now()
	r := w.answer()
	attrs := []slog.Attr{
		slog.String("op", opName(h.Opcode)), slog.Uint64("node", h.NodeId), slog.Uint64("unique", h.Unique),
		slog.Uint64("uid", uint64(h.Uid)), slog.Uint64("pid", uint64(h.Pid)),
		slog.Int("in", w.inLen), slog.Int("out", r), slog.Duration("took", time.Since(start)),
	}
	if r > 0 {
		if e := (*fuse.OutHeader)(unsafe.Pointer(&w.out[0])).Status; e != 0 {
			attrs = append(attrs, slog.String("err", syscall.Errno(-e).Error()))
		}
		w.reply(r)
	}
	if h.Opcode == opLookup || h.Opcode == opUnlink || h.Opcode == opRmdir {
		name, _ := w.name(sizeIn)
		attrs = append(attrs, slog.String("name", name))
	}
	w.c.log.LogAttrs(context.Background(), slog.LevelDebug, "request", attrs...)
}
