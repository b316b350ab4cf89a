// Package agent tests what an agent asks of the daemon besides files, through the control
// API of the real binary: conversations at their full size, calls of clients that belong to
// a daemon of long ago, and input that is no conversation.
//
// The worked examples of packages that can be tested by themselves are there; here belongs
// what needs a daemon, a store on disk and its memory. Kills are in tests/crash.
package agent
