"""Anthropic messages, with signed thinking. The cut falls inside of a batch.

The door is as strict as the newest models: a thinking block is valid only behind the very messages that
it was made behind. A way back that cuts and appends keeps all of them valid.
"""
import json

import agent
import job


def thinking(text):
    return {"type": "thinking", "thinking": text, "signature": f"EqQB-{text}"}


def use(id, name, **args):
    return {"type": "tool_use", "id": id, "name": name, "input": args}


class Anthropic(agent.Provider):
    format = "anthropic"
    script = [
        [{"role": "assistant", "content": [
            thinking("I should look first."),
            use("toolu_1", "list_files"),
            use("toolu_2", "read_file", path="words.py")]}],
        # Two parallel calls: the first one is good work, the second one wrecks the project.
        [{"role": "assistant", "content": [
            thinking("One function, and some order."),
            {"type": "text", "text": "I add top and tidy up."},
            use("toolu_3", "write_file", path="words.py", content=job.WORDS_PY),
            use("toolu_4", "shell", command=job.CLEAN_UP)]}],
        # It has been told. toolu_3 is in the files and in the history, so it goes on from there.
        [{"role": "assistant", "content": [
            thinking("The clean-up was a mistake."),
            use("toolu_5", "write_file", path="tests/test_top.py", content=job.TEST_TOP_PY)]}],
        [{"role": "assistant", "content": [
            thinking("Now the tests."),
            use("toolu_6", "shell", command=job.RUN_TESTS)]}],
        [{"role": "assistant", "content": [{"type": "text", "text": "top is there, and tested."}]}],
    ]

    def user(self, text):
        return [{"role": "user", "content": [{"type": "text", "text": text}]}]

    def calls(self, reply):
        return [agent.Call(b["id"], b["name"], b["input"]) for b in reply[0]["content"] if b["type"] == "tool_use"]

    def add_result(self, history, call, text, failed):
        if history[-1]["role"] == "assistant":
            history.append({"role": "user", "content": []})  # one message for the results of the whole batch
        history[-1]["content"].append({"type": "tool_result", "tool_use_id": call.id, "content": text, "is_error": failed})

    def __init__(self):
        super().__init__()
        self.made_behind = {}  # signature of a thinking block: the messages in front of it, as JSON

    def respond(self, history):
        reply = super().respond(history)
        for block in reply[0]["content"]:
            if block["type"] == "thinking":
                self.made_behind[block["signature"]] = json.dumps(history)
        return reply

    def check(self, messages):
        if messages[0]["role"] != "user":
            raise agent.BadRequest('messages: first message must use the "user" role')
        open_uses = []
        for i, m in enumerate(messages):
            blocks = m["content"]
            if not blocks or any(b.get("text") == "" for b in blocks):
                raise agent.BadRequest(f"messages.{i}: {m['role']} messages must have non-empty content")
            if m["role"] == "user":
                self.check_results(i, blocks, open_uses)
                open_uses = []
                continue
            self.all_answered(i, open_uses)
            for block in blocks:
                if block["type"] == "thinking" and self.made_behind.get(block["signature"]) != json.dumps(messages[:i]):
                    raise agent.BadRequest(f"messages.{i}.content.0: Invalid `signature` in `thinking` block. "
                                           "The block is bound to a different conversation.")
            if blocks[-1]["type"] == "thinking":
                raise agent.BadRequest("The final block in an assistant message cannot be `thinking`.")
            open_uses = [b["id"] for b in blocks if b["type"] == "tool_use"]
        self.all_answered(len(messages), open_uses)
        if messages[-1]["role"] != "user":
            raise agent.BadRequest("This model does not support assistant message prefill.")

    def check_results(self, i, blocks, open_uses):
        answered = []
        for j, block in enumerate(blocks):
            if block["type"] != "tool_result":
                break
            if block["tool_use_id"] not in open_uses:
                raise agent.BadRequest(f"messages.{i}.content.{j}: unexpected `tool_use_id` found in `tool_result` blocks: "
                                       f"{block['tool_use_id']}. Each `tool_result` block must have a corresponding `tool_use` "
                                       "block in the previous message.")
            if block["tool_use_id"] in answered:
                raise agent.BadRequest("each tool_use must have a single result")
            answered.append(block["tool_use_id"])
        # A result behind any other block does not count: results come first.
        self.all_answered(i, [id for id in open_uses if id not in answered])

    def all_answered(self, i, open_uses):
        if open_uses:
            raise agent.BadRequest(f"messages.{i - 1}: `tool_use` ids were found without `tool_result` blocks immediately after: "
                                   f"{', '.join(open_uses)}. Each `tool_use` block must have a corresponding `tool_result` "
                                   "block in the next message.")


if __name__ == "__main__":
    agent.main(Anthropic())
