package control

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// The calls about archives.
const (
	// PathExport: GET ?ref= &format= &compress= &history=1 &with_base=1 → bytes, and the Exported in the trailer ExportTrailer. When
	// that is missing, the bytes are of no use, and the trailer ErrorTrailer has the Error that was met on the way.
	PathExport = "/v1/export"
	// PathImport: PUT ?name= &mountpoint= or &mountpoint_b64=, bytes → Imported
	PathImport = "/v1/import"
	// ExportTrailer is the trailer of an export in which its result comes, when all bytes are sent.
	ExportTrailer = "Rewindfs-Exported"
	ErrorTrailer  = "Rewindfs-Error"
)

// The formats of an export.
const (
	FormatArchive = "archive"
	FormatTar     = "tar"
	FormatOCI     = "oci-layer"
)

// ExportRequest asks for the state of checkpoint Ref as a stream. History takes all checkpoints on the way to it along,
// WithBase the content of the base: both are for archives. Compress is "none", "gzip" or "zstd", for the others; "" is none.
type ExportRequest struct {
	Ref, Format, Compress string
	History, WithBase     bool
}

// Exported says what is in an export. Bytes counts content, before compression; Digest is that of an archive.
type Exported struct {
	Format      string `json:"format"`
	Checkpoint  string `json:"checkpoint"`
	Checkpoints int    `json:"checkpoints"`
	Objects     int64  `json:"objects"`
	Bytes       int64  `json:"bytes"`
	Messages    int64  `json:"messages"`
	Sockets     int    `json:"sockets"`   // that tar has no words for, and so are not in it
	Whiteouts   int    `json:"whiteouts"` // of an OCI layer
	Targets     int    `json:"targets"`   // copies of what is outside of the mount, which are not in it
	Digest      string `json:"digest,omitempty"`
}

// ImportRequest says what becomes of an archive: the branch Branch, mounted at Mountpoint, or beside the session when that is "".
type ImportRequest struct {
	Branch, Mountpoint string
}

// Imported is the answer to an import. Renamed are labels that could not be kept, and what they are now. Problem says why the
// branch, which is there, is not mounted.
type Imported struct {
	Branch        string            `json:"branch"`
	Mountpoint    string            `json:"mountpoint"`
	MountpointB64 string            `json:"mountpoint_b64,omitempty"`
	Checkpoints   []Checkpoint      `json:"checkpoints"` // oldest first
	Renamed       map[string]string `json:"renamed"`
	Objects       int64             `json:"objects"`
	Bytes         int64             `json:"bytes"`
	Messages      int64             `json:"messages"`
	Conversation  Conversation      `json:"conversation"`
	Problem       string            `json:"problem,omitempty"`
}

// Export writes a state to w. What was written is of no use when an error comes.
func (c *Client) Export(ctx context.Context, r ExportRequest, w io.Writer) (*Exported, error) {
	q := url.Values{"ref": {r.Ref}, "format": {r.Format}, "compress": {r.Compress}}
	if r.History {
		q.Set("history", "1")
	}
	if r.WithBase {
		q.Set("with_base", "1")
	}
	resp, err := c.do(ctx, http.MethodGet, PathExport, q, "", nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(w, resp.Body); err != nil {
		return nil, fmt.Errorf("receive the export: %w", err)
	}
	failed, out := new(Error), new(Exported)
	if said := resp.Trailer.Get(ErrorTrailer); said != "" {
		if err := json.Unmarshal([]byte(said), failed); err != nil {
			return nil, fmt.Errorf("receive the export: it failed, and why cannot be read: %w", err)
		}
		return nil, failed
	}
	if err := json.Unmarshal([]byte(resp.Trailer.Get(ExportTrailer)), out); err != nil {
		return nil, fmt.Errorf("receive the export: it ends without its result: %w", err)
	}
	return out, nil
}

// Import sends an archive, and returns when the branch is there, or nothing of it.
func (c *Client) Import(ctx context.Context, r ImportRequest, from io.Reader) (*Imported, error) {
	q := url.Values{"name": {r.Branch}}
	if at := NameOf(r.Mountpoint); at.PathB64 != "" {
		q.Set("mountpoint_b64", at.PathB64)
	} else {
		q.Set("mountpoint", r.Mountpoint)
	}
	resp, err := c.do(ctx, http.MethodPut, PathImport, q, "application/octet-stream", from)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	out := new(Imported)
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return nil, fmt.Errorf("read the answer to an import: %w", err)
	}
	return out, nil
}
