package patch

import (
	"bytes"
	"compress/zlib"
	"crypto/sha1"
	"fmt"
)

// isBinary is git's notion: a NUL among the first bytes.
func isBinary(p []byte) bool { return bytes.IndexByte(p[:min(len(p), 8000)], 0) >= 0 }

// blobID is git's name for a content.
func blobID(p []byte) string {
	h := sha1.New()
	fmt.Fprintf(h, "blob %d\x00", len(p))
	h.Write(p)
	return fmt.Sprintf("%x", h.Sum(nil))
}

const base85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"

// literal appends p as a literal hunk of a binary patch.
func literal(out *bytes.Buffer, p []byte) {
	var packed bytes.Buffer
	z := zlib.NewWriter(&packed)
	z.Write(p) // to memory: it cannot fail
	z.Close()
	fmt.Fprintf(out, "literal %d\n", len(p))
	for rest := packed.Bytes(); len(rest) > 0; {
		line := rest[:min(len(rest), 52)]
		rest = rest[len(line):]
		if n := byte(len(line)); n <= 26 {
			out.WriteByte('A' + n - 1)
		} else {
			out.WriteByte('a' + n - 27)
		}
		for len(line) > 0 {
			var word uint32
			for i := range 4 {
				word <<= 8
				if i < len(line) {
					word |= uint32(line[i])
				}
			}
			line = line[min(len(line), 4):]
			var digits [5]byte
			for i := range digits {
				digits[4-i] = base85[word%85]
				word /= 85
			}
			out.Write(digits[:])
		}
		out.WriteByte('\n')
	}
	out.WriteByte('\n')
}
