package archive

import (
	"encoding/binary"

	"github.com/zeebo/blake3"
)

// sealedUp makes the digests of sections right in a stream of records, nil if it is none.
func sealedUp(stream []byte) []byte {
	out := append([]byte(nil), stream...)
	begin := 0
	for at := 0; at < len(out); {
		n, k := binary.Uvarint(out[at+1:])
		end := at + 1 + k + int(n)
		if k <= 0 || n > MaxRecord || end > len(out) {
			return nil
		}
		switch {
		case out[at] == 'B':
			begin = at
		case out[at] == 'E' && n == 32:
			d := blake3.Sum256(out[begin:at])
			copy(out[end-32:], d[:])
		}
		at = end
	}
	return out
}
