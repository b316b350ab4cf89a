"""LangChain messages, as messages_to_dict writes them. The cut falls in front of a batch."""
import agent
import job


def message(kind, content, **fields):
    return {"type": kind, "data": {"content": content, "additional_kwargs": {}, "response_metadata": {}, "type": kind,
                                   "name": None, "id": None, **fields}}


def ai(id, content, *calls):
    return message("ai", content, id=id, tool_calls=list(calls), invalid_tool_calls=[], usage_metadata=None)


def call(id, name, **args):
    return {"name": name, "args": args, "id": id, "type": "tool_call"}


class LangChain(agent.Provider):
    format = "langchain"
    script = [
        [ai("run-1", "I look first.", call("c1", "list_files"), call("c2", "read_file", path="words.py"))],
        # The first call of the batch wrecks the project; the second one never runs.
        [ai("run-2", "", call("c3", "shell", command=job.CLEAN_UP),
            call("c4", "write_file", path="words.py", content=job.WORDS_PY))],
        # Of that step nothing is left, neither in the files nor in the history.
        [ai("run-3", "", call("c5", "write_file", path="words.py", content=job.WORDS_PY),
            call("c6", "write_file", path="tests/test_top.py", content=job.TEST_TOP_PY))],
        [ai("run-4", "", call("c7", "shell", command=job.RUN_TESTS))],
        [ai("run-5", "top is there, and tested.")],
    ]

    def user(self, text):
        return [message("human", text)]

    def calls(self, reply):
        return [agent.Call(c["id"], c["name"], c["args"]) for c in reply[0]["data"]["tool_calls"]]

    def add_result(self, history, call, text, failed):
        history.append(message("tool", text, name=call.name, tool_call_id=call.id, artifact=None,
                               status="error" if failed else "success"))

    def check(self, messages):
        open_calls = []
        for i, m in enumerate(messages):
            data = m["data"]
            if m["type"] == "tool":
                if data["tool_call_id"] not in open_calls:
                    raise agent.BadRequest("Invalid parameter: messages with role 'tool' must be a response to a "
                                           "preceeding message with 'tool_calls'.")
                open_calls.remove(data["tool_call_id"])
                continue
            self.all_answered(open_calls)
            if m["type"] == "ai":
                # An invalid call goes out to the provider like any other.
                open_calls = [c["id"] for c in data["tool_calls"] + data["invalid_tool_calls"]]
            elif m["type"] == "system" and i > 0:
                raise agent.BadRequest("Received multiple non-consecutive system messages.")
        self.all_answered(open_calls)

    def all_answered(self, open_calls):
        if open_calls:
            raise agent.BadRequest("Found AIMessages with tool_calls that do not have a corresponding ToolMessage: " +
                                   ", ".join(open_calls))


if __name__ == "__main__":
    agent.main(LangChain())
