package sandbox

import (
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// InitArg is the first argument of our own binary when Run starts it to become a command. The numbers of two descriptors follow: of the
// plan, until end of file, and of linkFD. They are where none of the user's are, which a command gets as they are.
const InitArg = "__sandbox-init"

// linkFD is a datagram socket to Run, closed on exec: see report. It is set once, by Init.
var linkFD = -1

// firstFD is the first descriptor behind standard input, output and error.
const firstFD = 3

// plan is what such a process is to do. It is made on the other side, where the host is seen as it is; here it is carried
// out line by line. It comes as package gob writes it: arguments and paths need not be UTF-8.
type plan struct {
	Argv []string
	Env  []string
	Dir  string
	View *view // nil: mounts stay as they are
	Bars *bars // nil: nothing is refused
	// PID1 is set in a pid namespace of our own: we stay, and the command is our child. It gets no descriptors but the first three.
	PID1 bool
	// Blocked are the signals to be blocked in the command. Nil: those that are.
	Blocked *unix.Sigset_t
	// Loopback is set in a network namespace of our own.
	Loopback bool
}

// report is what such a process tells Run. End of file says that the command runs, in place of it.
type report struct {
	// Stage and Err say why nothing runs. ExitCode is for the user.
	Stage    string `json:",omitempty"`
	Err      string `json:",omitempty"`
	ExitCode int    `json:",omitempty"`

	// Notes are for Outcome.Notes.
	Notes []string `json:",omitempty"`

	// Of the first process of a pid namespace only: its child runs, has stopped, has ended.
	Runs    bool `json:",omitempty"`
	Stopped int  `json:",omitempty"` // its pid there
	Ended   *int `json:",omitempty"` // a syscall.WaitStatus
}

// Stages at which the process may fail.
const (
	stageSpaces  = "spaces"  // this machine cannot make such namespaces; another way may be tried
	stageBox     = "box"     // something that was asked for could not be done
	stageCommand = "command" // the command cannot be executed
)

// failure is an error with what it says about the machine.
type failure struct {
	stage    string
	exitCode int
	err      error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// Init is the first thing that main must call. Where Run has started this process to become a command,
// Init does not return, or returns mine and the exit code. Else it returns at once.
func Init() (exitCode int, mine bool) {
	if len(os.Args) == 2 && os.Args[1] == RelayArg {
		takeOver()
		return 0, true
	}
	if len(os.Args) != 4 || os.Args[1] != InitArg {
		return 0, false
	}
	planFD, err := strconv.Atoi(os.Args[2])
	if err == nil {
		linkFD, err = strconv.Atoi(os.Args[3])
	}
	if err != nil {
		return 0, false
	}
	// Credentials, Landlock and seccomp belong to threads; exec and fork take those of the thread that calls them.
	runtime.LockOSThread()
	unix.CloseOnExec(planFD)
	unix.CloseOnExec(linkFD)
	var p plan
	if err := gob.NewDecoder(os.NewFile(uintptr(planFD), "plan")).Decode(&p); err != nil {
		fmt.Fprintf(os.Stderr, "%s is not for calling: use run or exec (%v)\n", InitArg, err)
		return ExitSandbox, true
	}
	code, err := p.become()
	if err != nil {
		r := report{Stage: stageBox, Err: err.Error(), ExitCode: ExitSandbox}
		var f *failure
		if errors.As(err, &f) {
			r.Stage, r.ExitCode = f.stage, f.exitCode
		}
		code = r.ExitCode
		tell(r)
	}
	return code, true
}

// tell sends a report. Nobody listening is no reason to do anything else.
func tell(r report, fds ...int) {
	if len(r.Err) > maxReason {
		r.Err = strings.ToValidUTF8(r.Err[:maxReason], "") + "…"
	}
	raw, err := json.Marshal(r)
	if err != nil {
		return
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	unix.Sendmsg(linkFD, raw, oob, nil, unix.MSG_NOSIGNAL)
}

// become makes of this process what the plan says. It returns only if it cannot, or as the first process of a pid namespace.
func (p *plan) become() (exitCode int, err error) {
	if p.Bars != nil {
		if err := p.closeDoors(); err != nil {
			return 0, fmt.Errorf("keep descriptors from the command: %w", err)
		}
	}
	if p.View != nil {
		if err := p.View.make(); err != nil {
			return 0, err
		}
	}
	if p.Loopback {
		if err := loopbackUp(); err != nil {
			return 0, fmt.Errorf("switch the loopback device on: %w", err)
		}
	}
	if err := os.Chdir(p.Dir); err != nil {
		return 0, fmt.Errorf("go to the working directory: %w", err)
	}
	path, err := lookPath(p.Argv[0], p.Env)
	if err != nil {
		return 0, err
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return 0, fmt.Errorf("give capabilities up: %w", err)
	}
	if p.Bars != nil {
		if err := p.Bars.raise(); err != nil {
			return 0, err
		}
	}
	if err := p.letGo(); err != nil {
		return 0, err
	}
	if p.PID1 {
		return p.father(path)
	}
	argv := p.Argv
	err = syscall.Exec(path, argv, p.Env)
	if errors.Is(err, syscall.ENOEXEC) { // a script without "#!": the shell's, as with execvp(3)
		err = syscall.Exec("/bin/sh", append([]string{"sh", path}, argv[1:]...), p.Env)
	}
	return 0, notExecutable(p.Argv[0], err)
}

// closeDoors closes descriptors on exec: all but the first three, or those of directories, by way of which the host's mounts
// could be reached as they were. A directory among the first three gives way to /dev/null: programs count on them.
func (p *plan) closeDoors() error {
	for fd := range firstFD {
		if !isDir(fd) {
			continue
		}
		null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Dup3(null, fd, 0)
			unix.Close(null)
		}
		if err != nil {
			return err
		}
	}
	if p.PID1 {
		return unix.CloseRange(firstFD, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && isDir(fd) {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

func isDir(fd int) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
}

func notExecutable(name string, err error) error {
	f := &failure{stageCommand, ExitNotExecutable, fmt.Errorf("cannot execute %s: %w", named(name), err)}
	if errors.Is(err, syscall.ENOENT) { // also its interpreter
		f.exitCode = ExitNotFound
	}
	return f
}

// named is a program's name for people: quoted where it could be taken for something else.
func named(name string) string {
	if name == "" || !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(name)
	}
	return name
}

// lookPath finds a program as a shell would: name as it is where it has a slash, else along PATH.
func lookPath(name string, env []string) (string, error) {
	notFound := &failure{stageCommand, ExitNotFound, fmt.Errorf("%s: command not found", named(name))}
	if name == "" {
		return "", notFound
	}
	if strings.Contains(name, "/") {
		return name, nil // exec(2) says what is wrong with it
	}
	var refused error
	for dir := range strings.SplitSeq(getenv(env, "PATH"), ":") {
		if dir == "" {
			dir = "."
		}
		path := filepath.Join(dir, name)
		if !strings.Contains(path, "/") {
			path = "./" + path
		}
		fi, err := os.Stat(path)
		if err != nil || fi.IsDir() {
			continue
		}
		if err := unix.Access(path, unix.X_OK); err != nil {
			refused = notExecutable(path, err)
			continue
		}
		return path, nil
	}
	if refused != nil {
		return "", refused
	}
	return "", notFound
}

// getenv is the value of a variable in a list of them: the last, as with exec.Cmd.
func getenv(env []string, name string) string {
	for i := len(env) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(env[i], name+"="); ok {
			return v
		}
	}
	return ""
}

// self is a command that starts our own binary for something that the arguments say.
func self(args ...string) *exec.Cmd {
	return &exec.Cmd{
		Path: "/proc/self/exe",
		Args: append([]string{os.Args[0]}, args...),
		// It lives for some milliseconds: it need not collect garbage, and the environment of the command is none of its own.
		Env:         []string{"GOGC=off"},
		Dir:         "/",
		SysProcAttr: &syscall.SysProcAttr{},
	}
}
