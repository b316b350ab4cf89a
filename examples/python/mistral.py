"""Mistral: OpenAI's shape with rules of its own. The cut falls in front of a batch.

A user may not speak right behind a tool, so the notice of the way back stands in the last tool result.
"""
import json
import re

import agent
import job


def call(id, name, **args):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(args)}}


def assistant(content, *calls):
    return [{"role": "assistant", "content": content, "tool_calls": list(calls) or None}]


class Mistral(agent.Provider):
    format = "mistral"
    script = [
        assistant("I look first.", call("aaaaaaaa1", "list_files"), call("aaaaaaaa2", "read_file", path="words.py")),
        # The first call of the batch wrecks the project; the second one never runs.
        assistant("", call("bbbbbbbb1", "shell", command=job.CLEAN_UP),
                  call("bbbbbbbb2", "write_file", path="words.py", content=job.WORDS_PY)),
        # Of that step nothing is left, neither in the files nor in the history.
        assistant("", call("cccccccc1", "write_file", path="words.py", content=job.WORDS_PY),
                  call("cccccccc2", "write_file", path="tests/test_top.py", content=job.TEST_TOP_PY)),
        assistant("", call("dddddddd1", "shell", command=job.RUN_TESTS)),
        assistant("top is there, and tested."),
    ]

    def user(self, text):
        return [{"role": "user", "content": text}]

    def calls(self, reply):
        return [agent.Call(c["id"], c["function"]["name"], json.loads(c["function"]["arguments"]))
                for c in reply[0]["tool_calls"] or []]

    def add_result(self, history, call, text, failed):
        history.append({"role": "tool", "tool_call_id": call.id, "name": call.name, "content": text})

    def check(self, messages):
        if messages[0]["role"] not in ("user", "system"):
            raise agent.BadRequest("Conversation must start with a user message or system message")
        open_calls = []
        for before, m in zip([{}] + messages, messages):
            if m["role"] == "tool":
                if open_calls[:1] != [m["tool_call_id"]]:  # results stand in the order of the calls
                    raise agent.BadRequest("Not the same number of function calls and responses")
                open_calls.pop(0)
                continue
            self.all_answered(open_calls)
            if m["role"] == "user" and before.get("role") == "tool":
                raise agent.BadRequest("Unexpected role 'user' after role 'tool'")
            if m["role"] == "system" and before.get("role", "system") != "system":
                raise agent.BadRequest(f"Unexpected role 'system' after role '{before['role']}'")
            if m["role"] == "assistant":
                open_calls = [c["id"] for c in m["tool_calls"] or []]
                if not open_calls and not m["content"]:
                    raise agent.BadRequest("Assistant message must have either content or tool_calls")
            for id in open_calls:
                if not re.fullmatch("[a-zA-Z0-9]{9}", id):
                    raise agent.BadRequest(f"Tool call id was {id} but must be a-z, A-Z, 0-9, with a length of 9.")
        self.all_answered(open_calls)
        if messages[-1]["role"] == "assistant":
            raise agent.BadRequest("Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant")

    def all_answered(self, open_calls):
        if open_calls:
            raise agent.BadRequest("Not the same number of function calls and responses")


if __name__ == "__main__":
    agent.main(Mistral())
