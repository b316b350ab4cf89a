// Package mountdiff holds a mount of the real binary against a plain directory:
// random operations through the kernel, with descriptors, directories and
// mappings held open, and checkpoint, rollback, undo, redo and remount by the CLI.
//
// Seeds are fixed as in package layersdiff; REWINDFS_TEST_SEED and
// REWINDFS_TEST_MOUNT_CHECKS choose others.
package mountdiff
