// Package budget counts what a session has used, and says when a ceiling is reached: cost in
// US dollars, input and output tokens, wall time, bytes written, checkpoints.
//
// # From messages to money
//
// A Reader takes the messages of one conversation, in order and in their native bytes, and finds
// the usage blocks in them (see Reader for the formats). FromToolEnd reads the block given with `tool end --usage`. Both give
// Records: tokens of one answer of a model, with a key that names the answer. A Meter
// adds up each key once, so that a history may be synced again and again, and prices it by a table of Prices.
//
// Money is counted in integers of 1e-12 US dollars (USD), so nothing drifts: a price of up to six decimals
// per million tokens is a whole number of them per token. Sums stop at the largest number instead of wrapping round.
//
// # Tokens
//
// Input is all that the model was given: also what came from the provider's cache or was written to it,
// whichever way the provider counts. Output is all that it produced, also reasoning that is not shown.
//
// # Prices are never guessed
//
// The table (prices.json, with the format described in it and at Prices) knows a model by its exact
// name. A model that is not in it, a request larger than its entry covers, another service tier than the
// standard one, cached tokens without a price for them, and charges other than for tokens make the cost of that answer unknown.
// With a ceiling on cost, unknown costs stop the session or are only noted, as Limits.OnUnknownCost says.
// A cost that a client reports itself is taken before the table's.
//
// # What belongs here
//
// Pure counting. No files but the price table, no clock, no store: the session keeps a
// Meter's entries, measures time and bytes, and refuses calls. What has been used stays used: a rollback gives no money back.
package budget
