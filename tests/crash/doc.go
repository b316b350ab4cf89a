// Package crash kills the daemon with SIGKILL at random moments while programs
// write, check and roll back, mounts again and looks for every operation that had
// been acknowledged.
//
// REWINDFS_TEST_KILLS says how often (default 15; scripts/crash.sh runs 100),
// REWINDFS_TEST_SEED=fresh takes another seed.
package crash
