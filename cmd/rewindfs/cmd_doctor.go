package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

func (a *app) newDoctor() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Find what stops a mount on this machine, and what mends it",
		Args:  exactly(0, "no argument"),
		RunE:  func(cmd *cobra.Command, _ []string) error { return a.runDoctor(cmd.Context(), thisMachine()) },
	}
}

// doctorResult is what doctor prints as JSON.
type doctorResult struct {
	OK     bool      `json:"ok"` // nothing stops a mount
	Checks []finding `json:"checks"`
}

func (a *app) runDoctor(ctx context.Context, m *machine) error {
	res := doctorResult{OK: true, Checks: m.examine(ctx)}
	bad := 0
	for _, f := range res.Checks {
		if f.Status == statusFail {
			bad++
		}
	}
	res.OK = bad == 0
	bads := failf(exitFailure, "%s in the way of a mount", count(int64(bad), "problem"))
	if a.json && bad > 0 {
		return &foundError{bads, res}
	}
	err := a.result(res, func(w io.Writer) {
		for _, f := range res.Checks {
			fmt.Fprintf(w, "%-5s %s: %s\n", f.Status, f.Name, f.Detail)
			if f.Fix != "" {
				fmt.Fprintf(w, "      mend it with: %s\n", f.Fix)
			}
		}
		if res.OK {
			fmt.Fprintln(w, "Nothing stops a mount here.")
		}
	})
	if err == nil && bad > 0 {
		return bads
	}
	return err
}
