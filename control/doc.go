// Package control carries requests between the command line, or any other
// program of the same user, and the daemon of a session.
//
// # The wire
//
// HTTP/1.1 with JSON bodies over the unix socket <store>/control.sock (mode
// 0600; the peer's uid must be the daemon's or root's). Paths begin with /v1/.
// GET takes no body, POST one JSON object of at most 1 MiB, with unknown fields refused.
//
//   - An answer is the JSON object of its type in wire.go, status 200.
//   - A failure is {"error": {"code", "message", "details"}} with a status of 400 or more.
//   - Any call may carry "generation", in its object or as ?generation=N. When
//     the daemon is of another generation the answer is 409 stale_generation with
//     details {sandbox, current, carried}, and nothing was changed.
//   - Long answers are NDJSON: lines {"item": …} and {"progress": …}, then
//     exactly one of {"result": …} and {"error": …}. A stream without a last line was cut off.
//   - File contents go as application/octet-stream with a Content-Length.
//   - /metrics is Prometheus text; /debug/pprof/ is Go's profiler.
//
// What belongs here: types, codes, framing, client and server. What does not:
// any knowledge of trees or checkpoints. It imports the standard library only.
package control
