package convo

import (
	"crypto/sha1"
	"encoding/hex"
	"strconv"
)

// idSpace is the namespace of the ids made here (RFC 9562 section 5.5). It must never
// change: the same rollback gives the same ids.
var idSpace = [16]byte{0x6d, 0x1f, 0x4a, 0x52, 0x0b, 0x7e, 0x5c, 0x39, 0x9a, 0x41, 0xc4, 0x3e, 0x77, 0x20, 0xd8, 0x15}

// uuid5 makes the id of something that a repair adds for a checkpoint: the same for the
// same two names, and no other.
func uuid5(checkpoint, what string) string {
	h := sha1.New()
	h.Write(idSpace[:])
	h.Write([]byte(checkpoint + "\x00" + what))
	sum := h.Sum(nil)[:16]
	sum[6] = sum[6]&0x0f | 0x50 // version 5
	sum[8] = sum[8]&0x3f | 0x80 // variant of the RFC
	s := hex.EncodeToString(sum)
	return s[:8] + "-" + s[8:12] + "-" + s[12:16] + "-" + s[16:20] + "-" + s[20:]
}

// newID makes the id of a new item, one that no other item of the history has: a
// history may hold a notice of an earlier rollback to a checkpoint of the same name.
func (w *work) newID(what string) string {
	for i := 1; ; i++ {
		id := uuid5(w.opt.Checkpoint, what)
		if i > 1 {
			id = uuid5(w.opt.Checkpoint, what+"\x00"+strconv.Itoa(i))
		}
		if !w.ids[id] {
			if w.ids == nil {
				w.ids = map[string]bool{}
			}
			w.ids[id] = true
			return id
		}
	}
}
