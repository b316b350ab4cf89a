package bench

import (
	"context"
	"fmt"
	"path"
	"strings"
)

// Row is one thing to measure. Run adds what it found to e.Report; a skip error
// leaves the row out of the report and says why.
type Row interface {
	ID() string
	Title() string
	Run(ctx context.Context, e *Env) error
}

// allRows are the rows in the order in which they run and are shown.
func allRows(o Options) []Row {
	q := o.Quick
	work := []Workload{
		grepWarm{}, walkWarm{}, gitStatus{}, noopBuild{}, grepCold{},
		clone{}, clone{loaded: true},
		create{quick: q}, untar{},
		writeBig{quick: q}, writeBig{quick: q, sync: true},
		readBig{onBig: onBig{q}}, readBig{onBig: onBig{q}, cold: true}, readOwn{quick: q},
		oneByte{onBig{q}}, renameDir{100}, renameDir{pick(o, 10_000, 2000)},
	}
	work = append(work, singleOps()...)
	rows := comparisons(work)
	rows = append(rows, rivals{}, checkpointFiles{}, checkpointChanged{}, checkpointLayers{}, rollbackChanged{}, depth{}, memory{})
	return append(rows, comparisons(deletingOps())...)
}

func comparisons(ws []Workload) (rows []Row) {
	for _, w := range ws {
		rows = append(rows, comparison{w})
	}
	return rows
}

// selectRows are the rows that o asks for.
func (o Options) selectRows() ([]Row, error) {
	rows := allRows(o)
	if len(o.Rows) == 0 {
		return rows, nil
	}
	var chosen []Row
	used := make([]bool, len(o.Rows))
	for _, r := range rows {
		hit := false
		for i, pattern := range o.Rows {
			ok, err := path.Match(pattern, r.ID())
			if err != nil {
				return nil, fmt.Errorf("row pattern %q: %w", pattern, err)
			}
			if ok {
				hit, used[i] = true, true
			}
		}
		if hit {
			chosen = append(chosen, r)
		}
	}
	for i, u := range used {
		if !u {
			return nil, fmt.Errorf("there is no row %q; rows are: %s", o.Rows[i], strings.Join(RowIDs(), " "))
		}
	}
	return chosen, nil
}

// RowIDs lists what Options.Rows may name.
func RowIDs() []string {
	var ids []string
	for _, r := range allRows(Options{}) {
		ids = append(ids, r.ID())
	}
	return ids
}
