package transport

import (
	"fmt"
	"sync/atomic"
)

// Opcodes of include/uapi/linux/fuse.h.
const (
	opLookup      = 1
	opForget      = 2
	opGetattr     = 3
	opSetattr     = 4
	opReadlink    = 5
	opSymlink     = 6
	opMknod       = 8
	opMkdir       = 9
	opUnlink      = 10
	opRmdir       = 11
	opRename      = 12
	opLink        = 13
	opRead        = 15
	opWrite       = 16
	opGetxattr    = 22
	opInit        = 26
	opReaddir     = 28
	opInterrupt   = 36
	opBatchForget = 42
	opReaddirplus = 44
	opRename2     = 45
	opSyncfs      = 50
	opStatx       = 52
	opCopyRange64 = 53
)

var opNames = [...]string{
	opLookup: "LOOKUP", opForget: "FORGET", opGetattr: "GETATTR", opSetattr: "SETATTR", opReadlink: "READLINK",
	opSymlink: "SYMLINK", opMknod: "MKNOD", opMkdir: "MKDIR", opUnlink: "UNLINK", opRmdir: "RMDIR", opRename: "RENAME",
	opLink: "LINK", 14: "OPEN", opRead: "READ", opWrite: "WRITE", 17: "STATFS", 18: "RELEASE", 20: "FSYNC",
	21: "SETXATTR", opGetxattr: "GETXATTR", 23: "LISTXATTR", 24: "REMOVEXATTR", 25: "FLUSH", opInit: "INIT",
	27: "OPENDIR", opReaddir: "READDIR", 29: "RELEASEDIR", 30: "FSYNCDIR", 31: "GETLK", 32: "SETLK", 33: "SETLKW",
	34: "ACCESS", 35: "CREATE", opInterrupt: "INTERRUPT", 37: "BMAP", 38: "DESTROY", 39: "IOCTL", 40: "POLL",
	41: "NOTIFY_REPLY", opBatchForget: "BATCH_FORGET", 43: "FALLOCATE", opReaddirplus: "READDIRPLUS",
	opRename2: "RENAME2", 46: "LSEEK", 47: "COPY_FILE_RANGE", 48: "SETUPMAPPING", 49: "REMOVEMAPPING",
	opSyncfs: "SYNCFS", 51: "TMPFILE", opStatx: "STATX", opCopyRange64: "COPY_FILE_RANGE_64",
}

func opName(op uint32) string {
	if int(op) < len(opNames) && opNames[op] != "" {
		return opNames[op]
	}
	return fmt.Sprintf("OP_%d", op)
}

// counters count requests by opcode; the last slot takes those without a name.
type counters [len(opNames) + 1]atomic.Uint64

func (c *counters) add(op uint32) { c[min(int(op), len(opNames))].Add(1) }

func (c *counters) snapshot() map[string]uint64 {
	m := make(map[string]uint64)
	for op := range c {
		if n := c[op].Load(); n > 0 {
			m[opName(uint32(op))] = n
		}
	}
	return m
}
