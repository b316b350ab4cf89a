package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is the version of this program.
const version = "0.1.0-dev"

// versionInfo is what version prints as JSON.
type versionInfo struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
	Dirty   bool   `json:"dirty,omitempty"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

func (a *app) newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  exactly(0, "no argument"),
		RunE: func(*cobra.Command, []string) error {
			v := versionInfo{Version: version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
			if bi, ok := debug.ReadBuildInfo(); ok {
				for _, s := range bi.Settings {
					switch s.Key {
					case "vcs.revision":
						v.Commit = s.Value
					case "vcs.modified":
						v.Dirty = s.Value == "true"
					}
				}
			}
			return a.result(v, func(w io.Writer) {
				commit := v.Commit
				if len(commit) > 12 {
					commit = commit[:12]
				}
				if commit != "" {
					commit = " " + commit
				}
				fmt.Fprintf(w, "rewindfs %s%s (%s, %s/%s)\n", v.Version, commit, v.Go, v.OS, v.Arch)
			})
		},
	}
}
