// Package mounttest runs the real rewindfs binary over throw-away directories.
//
// A [Mount] owns a base, a mount point, a store and a state directory. Whatever
// happens in a test, its end leaves no mount and no daemon behind, and the test
// fails if one byte or one stat field of the base changed. Test support only.
package mounttest
