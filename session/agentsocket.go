package session

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/rewindfs/rewindfs/control"
)

// The socket for agents lies in a directory of its own in the store, so that it alone can be shown.
const (
	agentDir  = "agent"
	agentSock = "agent/agent.sock"
)

// listenForAgents makes the socket for agents.
func (s *Session) listenForAgents() error {
	if err := os.Mkdir(filepath.Join(s.o.Store, agentDir), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make a place for the socket for agents: %w", err)
	}
	var err error
	s.agents, err = control.Listen(AgentSocket(s.o.Store))
	return err
}

func (s *Session) serveAgents() {
	s.server.AllowAgents(agentCalls)
	if err := s.server.ServeAgents(s.agents); err != nil {
		s.log.Error("commands in sandboxes cannot call any more", "error", err)
	}
}

// ForAgents says which files a command in a sandbox is to see of the store of l, where stores are out of sight: its
// own rewindfs then finds the session as it would outside, and speaks to the socket for agents. The keys are paths as
// the command sees them.
func (l *Listed) ForAgents() map[string]string {
	record := filepath.Join(l.Store, recordName)
	return map[string]string{l.Socket(): AgentSocket(l.Store), record: record}
}

// AgentSocket is the path of the socket for agents of a store.
func AgentSocket(store string) string { return filepath.Join(store, agentSock) }

// agentCalls are the calls that the socket for agents takes: those that only look, and those whose effect can be taken
// back. Whatever reaches the host, other branches, or the rules is not among them.
var agentCalls = []string{
	"GET " + control.PathPing,
	"GET " + control.PathStatus,
	"POST " + control.PathLog,
	"POST " + control.PathDiff,
	"POST " + control.PathPatch,
	"GET " + control.PathFile,
	"PUT " + control.PathFile,
	"GET " + control.PathMemory,
	"PUT " + control.PathMemory,
	"GET " + control.PathPolicy,
	"GET " + control.PathBudget,
	"GET " + control.PathCurrent,
	"GET " + control.PathBranches,
	"POST " + control.PathCheckpoint,
	"POST " + control.PathAttach,
	"POST " + control.PathReject,
	"POST " + control.PathRollback,
	"POST " + control.PathUndo,
	"POST " + control.PathRedo,
	"POST " + control.PathRestore,
	"POST " + control.PathToolBegin,
	"POST " + control.PathToolEnd,
	"POST " + control.PathToolReset,
}
