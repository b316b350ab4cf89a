package convo

import (
	"encoding/json"

	"pgregory.net/rapid"
)

// What the tests against package valid need; they stand outside, as valid imports this
// package.
var (
	AllFormats  = allFormats
	DrawDamaged = drawDamaged
	DrawOptions = drawOptions
	Lines       = lines
	Fixtures    = fixtures
)

// DrawHistory draws a valid history.
func DrawHistory(t *rapid.T, f Format) []json.RawMessage { return drawHistory(t, f).items }

// Input is what a fixture gives to Repair, Expected what it wants.
func (f fixture) Input() (History, Options) { return f.input(), f.options() }
func (f fixture) Expected() History {
	return History{Format: f.Format, Items: f.Want.History}
}
