// Package patch writes what differs between two trees as a patch that git apply takes: unified
// text with renames, modes and symbolic links. It is given the changes and reads both trees. What git has no words for (empty directories, owners, devices, finer modes), and
// what lies in .git, for which git apply refuses a whole patch, becomes a line that begins with #, which git apply passes over.
package patch
