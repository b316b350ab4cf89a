"""A client of rewindfs in one file, for Python 3.8 and later, with nothing but the standard library.

Copy it into your project. An agent loop needs five calls:

    fs = Rewindfs.at("/home/me/proj.rewind", format="anthropic")
    begun = fs.tool_begin("bash", call=id, step=step, messages=history)   # before a tool call runs
    fs.tool_end(id)                                                       # when it has ended
    told = fs.verification(verdict(COMMAND, fs.mountpoint), COMMAND, to=begun["checkpoint"]["id"])
    if told["rolled_back"]:                                               # files and conversation are back
        history = told["rolled_back"]["messages"]

Everything else that the daemon can do is one Rewindfs.call away; control/wire.go and
control/wire_agent.go list the calls.
"""
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile
import urllib.parse


class Refused(Exception):
    """The daemon said no, and changed nothing. code is for programs, the text for people."""

    def __init__(self, code, message, details=None):
        super().__init__(message)
        self.code, self.details = code, details or {}


class StaleGeneration(Refused):
    """The daemon was started again since this client was made: calls that were in flight, and perhaps
    the mount point, are not what this client thinks. Look at the state, then make a new client."""


class Rewindfs:
    """A session, by the control socket of its store. format is that of the conversation; without
    one the daemon tells it by the shape, which a history of plain text does not always show."""

    def __init__(self, socket_path, format=None, timeout=60):
        self.socket_path, self.format, self.timeout = socket_path, format, timeout
        # From here on every call carries the generation: a daemon that was started again refuses it.
        self.generation = None
        status = self.call("GET", "/v1/status")
        self.generation, self.mountpoint, self.base = status["generation"], status["mountpoint"], status["base"]

    @classmethod
    def at(cls, where, binary="rewindfs", **options):
        """The session whose mount or base holds the path where."""
        asked = subprocess.run([binary, "-s", os.path.abspath(where), "--json", "status"],
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=60)
        said = json.loads(asked.stdout)
        if not said["success"]:
            raise Refused("no_session", said["error"])
        return cls(os.path.join(said["data"]["store"], "control.sock"), **options)

    def call(self, method, path, body=None, **query):
        """One call of the control API; body is anything that JSON has, None for nothing."""
        if self.generation is not None:
            query["generation"] = self.generation
        query = {name: value for name, value in query.items() if value is not None}
        # Compact and escaped: what came from the daemon goes back with the same bytes, and a message
        # that it knows is not stored twice.
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        conn = _Connection(self.socket_path, self.timeout)
        try:
            conn.request(method, path + "?" + urllib.parse.urlencode(query), data)
            answer = conn.getresponse()
            said = json.loads(answer.read())
        finally:
            conn.close()
        if answer.status < 400:
            return said
        error = said["error"]
        kind = StaleGeneration if error["code"] == "stale_generation" else Refused
        raise kind(error["code"], error["message"], error.get("details"))

    def checkpoint(self, label=None, messages=None):
        """Keeps the files, and the conversation with them."""
        return self.call("POST", "/v1/checkpoint", {"label": label, "threads": self._stage(messages)})

    def rollback(self, ref, notes=""):
        """Goes back. notes tell the model why; the answer's messages are what to go on with."""
        return self.call("POST", "/v1/rollback", {"ref": ref, "notes": notes})

    def tool_begin(self, name, call, step=None, readonly=False, messages=None):
        """Says that a tool call is about to run, and returns when it may. The calls of one response of the
        model have the same step. The answer's checkpoint is where to go back to if it does harm."""
        return self.call("POST", "/v1/tool/begin", {
            "name": name, "call": call, "step": step or "", "readonly": readonly, "threads": self._stage(messages)})

    def tool_end(self, call, error=""):
        """Says that it has ended, and how."""
        return self.call("POST", "/v1/tool/end", {"call": call, "error": error})

    def tool_reset(self):
        """Says that no call is under way: for the start of a loop whose predecessor may have died in one."""
        return self.call("POST", "/v1/tool/reset", {})

    def verification(self, verdict, command, to=None, call=""):
        """Tells what a verifier said. With to, a "fail" goes back there: then the answer's rolled_back is not null."""
        return self.call("POST", "/v1/verification", {
            "command": command, "status": verdict["status"], "summary": verdict.get("summary") or "",
            "errors": verdict.get("errors") or [], "attempts": 1, "to": to or "", "call": call})

    def messages(self, ref=None):
        """The conversation of a checkpoint exactly as it was, cut and all; without ref, the live one."""
        return self.call("GET", "/v1/memory", ref=ref)["messages"]

    def put_messages(self, messages):
        """Makes a history the live conversation."""
        return self.call("PUT", "/v1/memory", messages, format=self.format)

    def _stage(self, messages):
        # Staged first and named in the call that follows: the daemon keeps files and conversation in
        # one transaction, so no crash can part them.
        if messages is None:
            return {}
        return {"main": self.call("PUT", "/v1/memory", messages, format=self.format, stage=1)}


def verdict(command, cwd, timeout=600):
    """Runs a verifier (sh -c) and returns what it says: its stdout must be one JSON object with a status
    of pass, fail or unknown. Anything else is unknown, and unknown is never a pass. `rewindfs verify`
    does the same with retries, and finds processes that hide from us."""
    with tempfile.TemporaryFile() as out:  # no pipe: a process left behind could keep it open
        run = subprocess.Popen(command, shell=True, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, start_new_session=True)
        try:
            run.wait(timeout)
        except subprocess.TimeoutExpired:
            return {"status": "unknown", "summary": f"the verifier did not end within {timeout} s"}
        finally:
            # Whatever it started must not go on writing into the tree after the decision.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
            run.wait()
        out.seek(0)
        said = out.read(1 << 20)
    try:
        found = json.loads(said)
        if found["status"] in ("pass", "fail", "unknown"):
            return found
    except (ValueError, TypeError, KeyError):
        pass
    return {"status": "unknown", "summary": "the verifier printed no verdict"}


class _Connection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path, timeout):
        super().__init__("rewindfs", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        # A socket address holds 107 bytes, so a long path goes through its directory.
        directory = os.open(os.path.dirname(self.path), os.O_PATH)
        try:
            self.sock.connect(f"/proc/self/fd/{directory}/{os.path.basename(self.path)}")
        finally:
            os.close(directory)
