package budget

import (
	"bytes"
	_ "embed" // for the table of prices
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

//go:embed prices.json
var defaultPrices []byte

// maxPriceFile bounds a table of prices, in bytes.
const maxPriceFile = 1 << 20

// Prices is a table of what models cost. It does not change once made. The format of its files is
//
//	{"format": 1, "models": [
//	  {"names": ["m-2", "m-2-20260101"], "tier": "batch", "input": "1.25", "output": 10, "cache_read": "0.125",
//	   "cache_write": "1.5", "cache_write_1h": "2.5", "max_input_tokens": 200000,
//	   "over": {"input_tokens": 100000, "input": "2.5", …}, "source": "…", "note": "…"}]}
//
// with prices in US dollars for a million tokens, of at most six decimals. prices.json, which is built in, explains the fields.
type Prices struct {
	byName map[string]price // by name and tier, as priceKey joins them
}

// rates are what a million tokens of each kind cost; nil when that is not known.
type rates struct {
	Input        *USD `json:"input"`
	Output       *USD `json:"output"`
	CacheRead    *USD `json:"cache_read"`
	CacheWrite   *USD `json:"cache_write"`
	CacheWrite1h *USD `json:"cache_write_1h"`
}

// price is an entry of the table.
type price struct {
	Names []string `json:"names"`
	Tier  string   `json:"tier"`
	rates
	MaxInput int64  `json:"max_input_tokens"` // 0 is no bound
	Over     *over  `json:"over"`
	Source   string `json:"source"`
	Note     string `json:"note"`
}

// over has the rates for requests with more input than InputTokens.
type over struct {
	InputTokens int64 `json:"input_tokens"`
	rates
}

// DefaultPrices is the table that is built in.
func DefaultPrices() (*Prices, error) { return parsePrices(defaultPrices) }

// UserPricesPath is where a user's own table is looked for.
func UserPricesPath() (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("find the configuration directory for prices: %w", err)
	}
	return filepath.Join(dir, "rewindfs", "prices.json"), nil
}

// LoadPrices is the built-in table with the entries of the file at path put over it, name by name and tier
// by tier. That there is no such file, or that path is "", is no error; one that cannot be understood is.
func LoadPrices(path string) (*Prices, error) {
	p, err := DefaultPrices()
	if err != nil || path == "" {
		return p, err
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the prices of models: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxPriceFile+1))
	if err != nil {
		return nil, fmt.Errorf("read the prices of models: %w", err)
	}
	own, err := parsePrices(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; correct it or move it away", path, err)
	}
	for name, entry := range own.byName {
		p.byName[name] = entry
	}
	return p, nil
}

// parsePrices reads a table. It accepts nothing that it does not know: a misspelt field would be a wrong price.
func parsePrices(data []byte) (*Prices, error) {
	if len(data) > maxPriceFile {
		return nil, fmt.Errorf("a table of prices has more than %d bytes", maxPriceFile)
	}
	var file struct {
		Format int     `json:"format"`
		Note   any     `json:"note"`
		Models []price `json:"models"`
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&file); err != nil {
		return nil, fmt.Errorf("read a table of prices: %w", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errors.New("read a table of prices: something follows the JSON object")
	}
	if file.Format != 1 {
		return nil, fmt.Errorf("the table of prices has format %d; this version knows format 1", file.Format)
	}
	p := &Prices{byName: make(map[string]price)}
	for i, entry := range file.Models {
		if err := entry.check(); err != nil {
			return nil, fmt.Errorf("prices, entry %d (%s): %w", i+1, strings.Join(entry.Names, ", "), err)
		}
		for _, name := range entry.Names {
			k := priceKey(name, entry.Tier)
			if _, twice := p.byName[k]; twice {
				return nil, fmt.Errorf("prices, entry %d: %s is there twice", i+1, name)
			}
			p.byName[k] = entry
		}
	}
	return p, nil
}

func (e price) check() error {
	if len(e.Names) == 0 {
		return errors.New("it has no names")
	}
	for _, name := range e.Names {
		if name == "" || strings.TrimSpace(name) != name {
			return fmt.Errorf("%q is no name of a model", name)
		}
	}
	if e.MaxInput < 0 || e.Over != nil && (e.Over.InputTokens <= 0 || e.MaxInput > 0 && e.Over.InputTokens >= e.MaxInput) {
		return errors.New("its bounds on input tokens are not in order")
	}
	if e.Over != nil {
		if err := e.Over.check(); err != nil {
			return fmt.Errorf("over: %w", err)
		}
	}
	return e.rates.check()
}

func (r rates) check() error {
	if r.Input == nil || r.Output == nil {
		return errors.New("it needs input and output")
	}
	for _, d := range []*USD{r.Input, r.Output, r.CacheRead, r.CacheWrite, r.CacheWrite1h} {
		if d != nil && (*d%1e6 != 0 || *d > 1e6*OneUSD) {
			return fmt.Errorf("%s is no price of a million tokens: use at most six decimals, and at most a million dollars", *d)
		}
	}
	return nil
}

// priceKey joins a name and a tier.
func priceKey(name, tier string) string { return strings.TrimPrefix(name, "models/") + "\x00" + tier }

// Cost prices an answer. If it cannot, why says so; the cost is then 0 and means nothing.
func (p *Prices) Cost(r Record) (cost USD, why string) {
	if r.Reported != nil {
		return *r.Reported, ""
	}
	if r.Extra != "" {
		return 0, fmt.Sprintf("there is no price for %s", r.Extra)
	}
	if r.Tokens.zero() {
		return 0, ""
	}
	if r.Model == "" {
		return 0, "the model is not named"
	}
	e, known := p.byName[priceKey(r.Model, r.Tier)]
	switch {
	case !known && r.Tier != "":
		return 0, fmt.Sprintf("there is no price for %s in the tier %s", r.Model, r.Tier)
	case !known:
		return 0, fmt.Sprintf("there is no price for %s", r.Model)
	case e.MaxInput > 0 && r.Tokens.Input > e.MaxInput:
		return 0, fmt.Sprintf("there is no price for %s with more than %d tokens of input", r.Model, e.MaxInput)
	}
	in := e.rates
	if e.Over != nil && r.Tokens.Input > e.Over.InputTokens {
		in = e.Over.rates
	}
	for _, part := range []struct {
		n    int64
		rate *USD
		what string
	}{
		{r.Tokens.plain(), in.Input, "input"},
		{r.Tokens.Output, in.Output, "output"},
		{r.Tokens.CacheRead, in.CacheRead, "tokens read from the cache"},
		{r.Tokens.CacheWrite, in.CacheWrite, "tokens written to the cache"},
		{r.Tokens.CacheWrite1h, in.CacheWrite1h, "tokens written to the cache for an hour"},
	} {
		if part.n == 0 {
			continue
		}
		if part.rate == nil {
			return 0, fmt.Sprintf("there is no price for %s of %s", part.what, r.Model)
		}
		cost = cost.plus((*part.rate / 1e6).times(part.n))
	}
	return cost, ""
}
