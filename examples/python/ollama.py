"""Ollama's own API: arguments are objects, and calls have no ids, so results are matched by the name of
the tool and their order. The cut falls inside of a batch.

A local model takes any history and answers worse to a broken one; the hosted ones refuse it, as here.
"""
import agent
import job


def call(index, name, **args):
    return {"function": {"index": index, "name": name, "arguments": args}}


class Ollama(agent.Provider):
    format = "ollama"
    script = [
        [{"role": "assistant", "content": "", "thinking": "I should look first.", "tool_calls": [
            call(0, "list_files"),
            call(1, "read_file", path="words.py")]}],
        # Two parallel calls: the first one is good work, the second one wrecks the project.
        [{"role": "assistant", "content": "I add top and tidy up.", "tool_calls": [
            call(0, "write_file", path="words.py", content=job.WORDS_PY),
            call(1, "shell", command=job.CLEAN_UP)]}],
        # It has been told. write_file is in the files and in the history, so it goes on from there.
        [{"role": "assistant", "content": "", "tool_calls": [
            call(0, "write_file", path="tests/test_top.py", content=job.TEST_TOP_PY)]}],
        [{"role": "assistant", "content": "", "tool_calls": [call(0, "shell", command=job.RUN_TESTS)]}],
        [{"role": "assistant", "content": "top is there, and tested."}],
    ]

    def user(self, text):
        return [{"role": "user", "content": text}]

    def calls(self, reply):
        # Where a format has no ids, rewindfs goes by the name, too.
        functions = [c["function"] for c in reply[0].get("tool_calls", [])]
        return [agent.Call(f["name"], f["name"], f["arguments"]) for f in functions]

    def add_result(self, history, call, text, failed):
        history.append({"role": "tool", "tool_name": call.name, "content": text})

    def check(self, messages):
        open_calls = []
        for i, m in enumerate(messages):
            if m["role"] == "tool":
                if m["tool_name"] not in open_calls:
                    raise agent.BadRequest(f"messages.{i}: a result without a call in the message before: {m['tool_name']}")
                open_calls.remove(m["tool_name"])
                continue
            self.all_answered(open_calls)
            open_calls = [c["function"]["name"] for c in m.get("tool_calls", [])]
        self.all_answered(open_calls)

    def all_answered(self, open_calls):
        if open_calls:
            raise agent.BadRequest("calls without results: " + ", ".join(open_calls))


if __name__ == "__main__":
    agent.main(Ollama())
