"""OpenAI chat completions, and the many APIs of the same shape. The cut falls inside of a batch."""
import json

import agent
import job


def call(id, name, **args):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(args)}}


class OpenAIChat(agent.Provider):
    format = "openai-chat"
    script = [
        [{"role": "assistant", "content": "I look first.", "tool_calls": [
            call("call_1", "list_files"),
            call("call_2", "read_file", path="words.py")]}],
        # Two parallel calls: the first one is good work, the second one wrecks the project.
        [{"role": "assistant", "content": None, "tool_calls": [
            call("call_3", "write_file", path="words.py", content=job.WORDS_PY),
            call("call_4", "shell", command=job.CLEAN_UP)]}],
        # It has been told. call_3 is in the files and in the history, so it goes on from there.
        [{"role": "assistant", "content": "The clean-up broke the project; I leave it.", "tool_calls": [
            call("call_5", "write_file", path="tests/test_top.py", content=job.TEST_TOP_PY)]}],
        [{"role": "assistant", "content": None, "tool_calls": [
            call("call_6", "shell", command=job.RUN_TESTS)]}],
        [{"role": "assistant", "content": "top is there, and tested.", "refusal": None}],
    ]

    def user(self, text):
        return [{"role": "user", "content": text}]

    def calls(self, reply):
        return [agent.Call(c["id"], c["function"]["name"], json.loads(c["function"]["arguments"]))
                for c in reply[0].get("tool_calls", [])]

    def add_result(self, history, call, text, failed):
        history.append({"role": "tool", "tool_call_id": call.id, "content": text})

    def check(self, messages):
        open_calls = []  # of the last assistant message, without a result so far
        for i, m in enumerate(messages):
            if m["role"] == "tool":
                if m["tool_call_id"] not in open_calls:
                    raise agent.BadRequest("Invalid parameter: messages with role 'tool' must be a response to a "
                                           "preceeding message with 'tool_calls'.")
                open_calls.remove(m["tool_call_id"])
                continue
            self.all_answered(open_calls)
            if m["role"] == "assistant":
                open_calls = [c["id"] for c in m.get("tool_calls", [])]
                if not open_calls and not m["content"]:
                    raise agent.BadRequest(f"Invalid value for 'content' of messages[{i}]: expected a string, got null.")
        self.all_answered(open_calls)

    def all_answered(self, open_calls):
        if open_calls:
            raise agent.BadRequest("An assistant message with 'tool_calls' must be followed by tool messages responding to each "
                                   "'tool_call_id'. The following tool_call_ids did not have response messages: " + ", ".join(open_calls))


if __name__ == "__main__":
    agent.main(OpenAIChat())
