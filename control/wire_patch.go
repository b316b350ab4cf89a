package control

import (
	"context"
	"encoding/base64"
	"unicode/utf8"
)

// PathPatch takes a PatchRequest and answers with NDJSON of FilePatch, result DiffSummary.
const PathPatch = "/v1/patch"

// PatchRequest asks how two states differ, as a patch. Binary wants the bytes of binary files, too;
// Stat only the numbers.
type PatchRequest struct {
	DiffRequest
	Binary bool `json:"binary,omitempty"`
	Stat   bool `json:"stat,omitempty"`
}

// FilePatch is one entry of a patch that git apply takes; the entries one after the other are
// the patch. Patch is for people and for UTF-8, PatchB64 holds the bytes when they are not.
type FilePatch struct {
	PathName
	OldPath    string `json:"old_path,omitempty"` // of a rename
	OldPathB64 string `json:"old_path_b64,omitempty"`
	Patch      string `json:"patch,omitempty"`
	PatchB64   string `json:"patch_b64,omitempty"`
	Added      int    `json:"added"` // lines
	Removed    int    `json:"removed"`
	Note       bool   `json:"note,omitempty"` // only of what git has no words for
	Binary     bool   `json:"binary"`         // or too large to be compared by lines
	OldSize    int64  `json:"old_size"`
	NewSize    int64  `json:"new_size"`
}

// SetText puts the bytes of the entry where they belong.
func (p *FilePatch) SetText(b []byte) {
	if utf8.Valid(b) {
		p.Patch = string(b)
	} else {
		p.PatchB64 = base64.StdEncoding.EncodeToString(b)
	}
}

// Text gives back the bytes that SetText took.
func (p *FilePatch) Text() ([]byte, error) {
	if p.PatchB64 == "" {
		return []byte(p.Patch), nil
	}
	return base64.StdEncoding.DecodeString(p.PatchB64)
}

// Patch calls each for every entry of the patch between two states, in path order.
func (c *Client) Patch(ctx context.Context, r PatchRequest, each func(FilePatch) error) (*DiffSummary, error) {
	return stream[DiffSummary](ctx, c, PathPatch, r, each, nil)
}
