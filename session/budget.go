package session

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/rewindfs/rewindfs/budget"
	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/ledger"
)

// budgetKeeper counts what a session uses against its ceilings. What has been used
// stays used: no rollback gives money back.
type budgetKeeper struct {
	s *Session

	mu    sync.Mutex
	meter *budget.Meter
	state budgetState // mu: Bytes without what was written since the mount
	kept  int64       // mu: Tree.Written when it was noted last
	table fileMark    // mu: what the user's price table was when it was read
}

// budgetState is what is kept in the store besides the entries of the meter.
type budgetState struct {
	Limits budget.Limits `json:"limits"`
	Since  time.Time     `json:"since"` // when counting began
	Bytes  int64         `json:"bytes_written"`
	Epoch  int           `json:"epoch"` // counts resets: entries of older ones do not count
}

// usagePrefix starts the meta keys of the meter's entries.
const usagePrefix = "use/"

func openBudget(s *Session) (*budgetKeeper, error) {
	k := &budgetKeeper{s: s}
	if err := s.loadState(stateBudget, &k.state); err != nil {
		return nil, err
	}
	if k.state.Since.IsZero() { // counting begins with the first mount
		k.state.Since = s.o.Now().UTC()
		if err := k.save(k.state); err != nil {
			return nil, err
		}
	}
	prices, err := k.prices()
	if err != nil {
		return nil, err
	}
	k.meter = budget.NewMeter(prices)
	var bad error
	err = s.db.Scan(kv.Meta(k.entryPrefix()), nil, func(_, v []byte) bool {
		var e budget.Entry
		if bad = json.Unmarshal(v, &e); bad != nil {
			return false
		}
		k.meter.Restore(e)
		return true
	})
	return k, firstOf(bad, err)
}

// prices is the built-in table with the user's own over it.
func (k *budgetKeeper) prices() (*budget.Prices, error) {
	path, err := budget.UserPricesPath()
	if err != nil {
		path = "" // no home: nobody's own table
	}
	k.table = markOf(path)
	prices, err := budget.LoadPrices(path)
	if err != nil {
		k.s.log.Warn("the user's price table is not used", "path", path, "error", err)
		if prices, err = budget.DefaultPrices(); err != nil {
			return nil, fmt.Errorf("load the price table: %w", err)
		}
	}
	return prices, nil
}

func (k *budgetKeeper) entryPrefix() string {
	return fmt.Sprintf("%s%08d/", usagePrefix, k.state.Epoch)
}

// add counts records and keeps what changed.
func (k *budgetKeeper) add(records []budget.Record) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var b kv.Batch
	b.UseReserve()
	for _, r := range records {
		e, changed, err := k.meter.Add(r)
		if err != nil {
			return err
		}
		if !changed {
			continue
		}
		v, err := json.Marshal(e)
		if err != nil {
			return fmt.Errorf("encode usage: %w", err)
		}
		sum := sha256.Sum256([]byte(e.Key))
		b.Put(kv.Meta(k.entryPrefix()+hex.EncodeToString(sum[:])), v)
	}
	if err := k.s.db.Apply(&b); err != nil {
		return fmt.Errorf("keep what was used: %w", err)
	}
	return nil
}

// readMessages counts the usage blocks of a conversation, which may be synced again and again.
func (k *budgetKeeper) readMessages(_ context.Context, _ string, items []json.RawMessage) error {
	var reader budget.Reader
	var records []budget.Record
	var bad error
	for _, m := range items {
		rec, ok, err := reader.Read(m)
		if err != nil {
			bad = err
		} else if ok {
			records = append(records, rec)
		}
	}
	return firstOf(k.add(records), bad)
}

// readUsage counts the usage given with the end of a tool call.
func (k *budgetKeeper) readUsage(raw []byte, call string) error {
	rec, err := budget.FromToolEnd(raw, call)
	if err != nil {
		return err
	}
	return k.add([]budget.Record{rec})
}

// used is what the session has used so far.
func (k *budgetKeeper) used() (budget.Limits, budget.Usage) {
	k.mu.Lock()
	defer k.mu.Unlock()
	u := k.meter.Usage()
	u.WallTime = k.s.o.Now().Sub(k.state.Since)
	u.BytesWritten = k.state.Bytes + k.s.tree.Written()
	u.Checkpoints = int64(k.s.journal.MadeSince(k.state.Since))
	return k.state.Limits, u
}

// overBudget says whether a ceiling is reached.
func (s *Session) overBudget() (reason string, over bool) {
	limits, used := s.budget.used()
	if limits.Cost > 0 && len(used.Unpriced) > 0 && s.budget.repriced() {
		limits, used = s.budget.used()
	}
	return budget.Check(limits, used)
}

// repriced reads the user's price table again if it has changed.
func (k *budgetKeeper) repriced() bool {
	path, err := budget.UserPricesPath()
	if err != nil || inside(path, k.s.o.Mountpoint) { // never wait for ourselves
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if markOf(path) == k.table {
		return false
	}
	prices, err := k.prices()
	if err != nil {
		return false
	}
	k.meter.SetPrices(prices)
	return true
}

// fileMark tells whether a file is the one it was.
type fileMark struct {
	size  int64
	mtime time.Time
}

// markOf is zero where there is no file.
func markOf(path string) fileMark {
	fi, err := os.Stat(path)
	if err != nil {
		return fileMark{}
	}
	return fileMark{fi.Size(), fi.ModTime()}
}

// withinBudget refuses work once a ceiling is reached, and records that it did.
func (s *Session) withinBudget(what string) error {
	reason, over := s.overBudget()
	if !over {
		return nil
	}
	event := s.event(ledger.KindBudgetStop)
	event.Details = map[string]any{"refused": what, "reason": reason}
	s.audit(event)
	return &control.Error{
		Code:    control.CodeBudget,
		Message: fmt.Sprintf("session %s: %s (raise the ceiling with: rewindfs budget set; see them with: rewindfs budget show)", s.o.Name, reason),
	}
}

// Budget says what may be used and what was.
func (s *Session) Budget(context.Context, *control.None) (*control.Budget, error) {
	limits, used := s.budget.used()
	out := &control.Budget{Unpriced: []string{}}
	out.Limits = wireLimits(limits)
	out.Used = control.Limits{
		InputTokens: used.InputTokens, OutputTokens: used.OutputTokens, WallMS: used.WallTime.Milliseconds(),
		BytesWritten: used.BytesWritten, Checkpoints: used.Checkpoints, USD: used.Cost.String(),
	}
	for _, u := range used.Unpriced {
		out.Unpriced = append(out.Unpriced, u.Why)
	}
	if reason, over := budget.Check(limits, used); over {
		out.Exceeded = reason
	}
	return out, nil
}

func wireLimits(l budget.Limits) control.Limits {
	out := control.Limits{
		InputTokens: l.InputTokens, OutputTokens: l.OutputTokens, WallMS: l.WallTime.Milliseconds(),
		BytesWritten: l.BytesWritten, Checkpoints: l.Checkpoints, OnUnknownCost: l.OnUnknownCost,
	}
	if l.Cost > 0 {
		out.USD = l.Cost.String()
	}
	return out
}

// SetBudget sets the ceilings. It is kept in the store.
func (s *Session) SetBudget(ctx context.Context, r *control.BudgetRequest) (*control.Budget, error) {
	limits, err := limitsOf(r.Limits)
	if err != nil {
		return nil, err
	}
	s.heads.Lock()
	err = s.alive()
	if err == nil {
		err = s.budget.set(r, limits)
	}
	s.heads.Unlock()
	if err != nil {
		return nil, apiError(err)
	}
	return s.Budget(ctx, nil)
}

func (k *budgetKeeper) set(r *control.BudgetRequest, limits budget.Limits) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	next := k.state
	if r.Limits != nil {
		next.Limits = limits
	}
	if r.Reset {
		next.Since, next.Bytes, next.Epoch = k.s.o.Now().UTC(), -k.s.tree.Written(), next.Epoch+1
	}
	event := k.s.event(ledger.KindPolicy)
	event.Details = map[string]any{"action": "budget", "limits": r.Limits, "reset": r.Reset}
	if err := k.save(next, event); err != nil {
		return err
	}
	if r.Reset {
		prices, err := k.prices()
		if err != nil {
			return err
		}
		k.meter = budget.NewMeter(prices)
	}
	k.state = next
	return nil
}

// keepBytes is how many bytes may be written before it is noted how many they are: a
// killed daemon forgets no more.
const keepBytes = 1 << 20

// keep notes how many bytes were written, now and then, or in any case.
func (k *budgetKeeper) keep(anyway bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.s.tree.Written()
	if !anyway && now-k.kept < keepBytes {
		return nil
	}
	return k.save(k.state)
}

// save keeps st together with what was written since the mount. Preconditions: mu is
// held, or nobody else has k yet.
func (k *budgetKeeper) save(st budgetState, events ...ledger.Event) error {
	now := k.s.tree.Written()
	st.Bytes += now
	if err := k.s.saveState(stateBudget, st, events...); err != nil {
		return err
	}
	k.kept = now
	return nil
}

func limitsOf(l *control.Limits) (budget.Limits, error) {
	if l == nil {
		return budget.Limits{}, nil
	}
	out := budget.Limits{
		InputTokens: l.InputTokens, OutputTokens: l.OutputTokens, WallTime: time.Duration(l.WallMS) * time.Millisecond,
		BytesWritten: l.BytesWritten, Checkpoints: l.Checkpoints, OnUnknownCost: l.OnUnknownCost,
	}
	if l.USD != "" {
		var err error
		if out.Cost, err = budget.ParseUSD(l.USD); err != nil {
			return out, badRequest("the ceiling on cost: %v", err)
		}
	}
	if err := out.Check(); err != nil {
		return out, badRequest("%v", err)
	}
	return out, nil
}
