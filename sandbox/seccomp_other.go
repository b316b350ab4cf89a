//go:build !amd64 && !arm64

package sandbox

// callTables: without one there is no filter. Mounts and Landlock, which refuse what matters most, need none.
var callTables []callTable
