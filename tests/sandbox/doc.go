// Package sandbox has the list of what commands in a sandbox try in vain, carried out through the binary.
// It has tests only.
package sandbox
