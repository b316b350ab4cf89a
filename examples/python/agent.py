"""An agent loop with rewindfs in it, whatever the provider. `work` is the part to copy.

It needs no network: the "model" is a list of responses. But it sits behind a strict door: before each
response it checks the history as its provider would, and refuses a bad one with that provider's words.
"""
import hashlib
import json
import os
import pathlib
import shlex
import subprocess
import sys
from collections import namedtuple

import job
from rewindfs import Rewindfs, verdict

# Outside of the mount: whoever works there must not be able to edit it.
VERIFIER = shlex.join([sys.executable, str(pathlib.Path(__file__).resolve().parent.parent / "verifier.py")])

Call = namedtuple("Call", "id name args")


class BadRequest(Exception):
    """What a provider answers with status 400."""


class Provider:
    """A model behind an API. Each format's file has the shapes: `format`, `script`, `user`, `calls`,
    `add_result` and `check`."""

    def __init__(self):
        self.script = list(self.script)

    def respond(self, history):
        """The next response: messages or items, as the provider sends them."""
        self.check(history)
        return self.script.pop(0)


def work(fs, provider, history):
    """Lets the model work until it calls no more tools. Returns the conversation."""
    fs.tool_reset()  # whoever ran here before may have died in the middle of a call
    for number in range(1, 100):
        reply = provider.respond(history)
        history = history + reply
        wanted = provider.calls(reply)
        if not wanted:
            return history
        for call in wanted:
            readonly = call.name in READ_ONLY
            begun = fs.tool_begin(call.name, call.id, step=f"step-{number}", readonly=readonly, messages=history)
            before = None if readonly else tree(fs.mountpoint)  # for examine alone
            text, failed = use_tool(fs.mountpoint, call)
            fs.tool_end(call.id, error=text if failed else "")
            provider.add_result(history, call, text, failed)
            say(f"{call.name}: {summary(call)}", "failed" if failed else "")
            if readonly:
                continue
            found = verdict(VERIFIER, fs.mountpoint, timeout=60)
            say("  verifier:", found["status"], "-", found["summary"])
            if found["status"] == "unknown":
                raise SystemExit("the verifier says nothing: stopping, with everything kept")
            to = begun["checkpoint"]["id"]
            told = fs.verification(found, VERIFIER, to=to, call=call.id)
            if told["skipped_noop"]:
                raise SystemExit("the call changed nothing, so the harm is older: " + "; ".join(told["warnings"]))
            back = told["rolled_back"]
            if back:
                examine(fs, provider, to, back, before)
                # The rest of the batch does not run: its calls are gone from the history, or answered.
                history = back["messages"]
                break
    raise SystemExit("the model does not come to an end")


def examine(fs, provider, to, back, before):
    """Proves what the way back claims. A real agent has no need of this."""
    say(f"  back: {back['changed_paths']} paths in {back['engine_us'] / 1000:.1f} ms;",
        "conversation:", ", ".join(r["action"] for r in back["repairs"]))
    must(tree(fs.mountpoint) == before, "the files are not what they were before the call")
    try:
        provider.check(fs.messages(to))
    except BadRequest as e:
        say("  without the repair: 400", e)
    else:
        must(False, "the cut conversation is accepted as it is, so this shows nothing")
    provider.check(back["messages"])
    say("  with it: accepted")


READ_ONLY = {"read_file", "list_files"}


def use_tool(root, call):
    """Runs one tool call in the mount. Returns its text, and whether it failed."""
    try:
        if call.name == "read_file":
            return (pathlib.Path(root) / call.args["path"]).read_text(), False
        if call.name == "list_files":
            return "\n".join(sorted(tree(root))), False
        if call.name == "write_file":
            (pathlib.Path(root) / call.args["path"]).write_text(call.args["content"])
            return "written", False
        run = subprocess.run(call.args["command"], shell=True, cwd=root, stdin=subprocess.DEVNULL, timeout=60,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return f"exit code {run.returncode}\n{run.stdout}", run.returncode != 0
    except (OSError, subprocess.TimeoutExpired) as e:
        return str(e), True


def tree(root):
    """All files below root, with what tells two states apart."""
    files = {}
    for path in pathlib.Path(root).rglob("*"):
        at = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
        files[str(path.relative_to(root))] = (at.st_mode, at.st_mtime_ns, content)
    return files


def main(provider):
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} MOUNTPOINT    (a fresh mount of examples/project)")
    binary = os.environ.get("REWINDFS_BIN", "rewindfs")
    fs = Rewindfs.at(sys.argv[1], binary, format=provider.format)
    must(fs.call("GET", "/v1/status")["checkpoints"] == 0, "this mount has a history: take a fresh one")
    base = tree(fs.base)

    history = work(fs, provider, provider.user(job.TASK))

    fs.checkpoint("done", messages=history)
    final = verdict(VERIFIER, fs.mountpoint, timeout=60)
    must(final["status"] == "pass", final["summary"])
    must({"words.py", "tests/test_top.py", "samples/fox.txt"} <= tree(fs.mountpoint).keys(), "files are missing")
    must(not provider.script, "the model had more to say")
    provider.check(history + provider.user("Thank you."))
    must("<rewindfs-rollback " in json.dumps(history), "the model was not told that it went back")
    must(fs.messages() == history, "the daemon's copy of the conversation is another one")
    must(tree(fs.base) == base, "the base was written")
    ledger = subprocess.run([binary, "-s", fs.mountpoint, "ledger", "verify"], stdout=subprocess.PIPE, text=True, timeout=60)
    must(ledger.returncode == 0, "the ledger does not verify\n" + ledger.stdout)
    say(f"done: {final['summary']}; {len(history)} messages, valid; the base is untouched; the ledger verifies")


def summary(call):
    return call.args.get("command") or call.args.get("path") or "."


def must(holds, otherwise):
    if not holds:
        sys.exit("NOT AS CLAIMED: " + otherwise)


def say(*words):
    print(*(w for w in words if w), flush=True)
