"""Gemini contents, with thought signatures. The cut falls inside of a batch."""
import agent
import job


def call(id, name, signature=None, **args):
    part = {"functionCall": {"id": id, "name": name, "args": args}}
    if signature:  # beside the call, and of parallel calls on the first one alone
        part["thoughtSignature"] = signature
    return part


class Gemini(agent.Provider):
    format = "gemini"
    script = [
        [{"role": "model", "parts": [
            {"text": "I should look first.", "thought": True},
            call("g1", "list_files", "CsQB-1"),
            call("g2", "read_file", path="words.py")]}],
        # Two parallel calls: the first one is good work, the second one wrecks the project.
        [{"role": "model", "parts": [
            {"text": "I add top and tidy up."},
            call("g3", "write_file", "CsQB-3", path="words.py", content=job.WORDS_PY),
            call("g4", "shell", command=job.CLEAN_UP)]}],
        # It has been told. g3 is in the files and in the history, so it goes on from there.
        [{"role": "model", "parts": [
            call("g5", "write_file", "CsQB-5", path="tests/test_top.py", content=job.TEST_TOP_PY)]}],
        [{"role": "model", "parts": [call("g6", "shell", "CsQB-6", command=job.RUN_TESTS)]}],
        [{"role": "model", "parts": [{"text": "top is there, and tested."}]}],
    ]

    def user(self, text):
        return [{"role": "user", "parts": [{"text": text}]}]

    def calls(self, reply):
        return [agent.Call(c["id"], c["name"], c["args"]) for c in function_calls(reply[0])]

    def add_result(self, history, call, text, failed):
        if history[-1]["role"] == "model":
            history.append({"role": "user", "parts": []})  # one content for the responses of the whole batch
        history[-1]["parts"].append({"functionResponse": {
            "id": call.id, "name": call.name, "response": {"error" if failed else "output": text}}})

    def __init__(self):
        super().__init__()
        self.signed = {part["thoughtSignature"]: part for reply in self.script for part in reply[0]["parts"]
                       if "thoughtSignature" in part}

    def check(self, contents):
        if contents[0]["role"] != "user" or contents[-1]["role"] != "user":
            raise agent.BadRequest("Please ensure that multiturn requests start and end with a user turn.")
        waiting = []  # the calls of the content before
        for before, c in zip([None] + contents, contents):
            if c["role"] not in ("user", "model"):
                raise agent.BadRequest("Please use a valid role: user, model.")
            responses = [p["functionResponse"] for p in c["parts"] if "functionResponse" in p]
            if responses and not waiting:
                raise agent.BadRequest("Please ensure that function response turn comes immediately after a function call turn.")
            # As many as calls, in their order, in front of everything else.
            first = [p.get("functionResponse", {}).get("id") for p in c["parts"][:len(waiting)]]
            if len(responses) != len(waiting) or waiting and first != [w["id"] for w in waiting]:
                raise agent.BadRequest("Please ensure that the number of function response parts is equal to the number of "
                                       "function call parts of the function call turn.")
            waiting = function_calls(c)
            if waiting and before["role"] != "user":
                raise agent.BadRequest("Please ensure that function call turn comes immediately after a user turn or after a "
                                       "function response turn.")
            if waiting:
                self.check_signature(next(p for p in c["parts"] if "functionCall" in p))

    def check_signature(self, part):
        if self.signed.get(part.get("thoughtSignature")) != part:
            raise agent.BadRequest("Function call is missing a thought_signature in functionCall parts. This is required for "
                                   "tools to work correctly.")


def function_calls(content):
    return [p["functionCall"] for p in content["parts"] if "functionCall" in p]


if __name__ == "__main__":
    agent.main(Gemini())
