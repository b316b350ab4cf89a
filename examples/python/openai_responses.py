"""OpenAI Responses items, with reasoning. The cut falls in front of a batch, which goes with its reasoning."""
import json

import agent
import job


def reasoning(id):
    return {"type": "reasoning", "id": id, "summary": [], "encrypted_content": f"gAAAA-{id}"}


def call(id, name, **args):
    return {"type": "function_call", "id": f"fc_{id}", "call_id": f"call_{id}", "name": name,
            "arguments": json.dumps(args), "status": "completed"}


class OpenAIResponses(agent.Provider):
    format = "openai-responses"
    script = [
        [reasoning("rs_1"), call(1, "list_files"), call(2, "read_file", path="words.py")],
        # The first call of the batch wrecks the project; the second one never runs.
        [reasoning("rs_2"), call(3, "shell", command=job.CLEAN_UP),
         call(4, "write_file", path="words.py", content=job.WORDS_PY)],
        # Of that step nothing is left, neither in the files nor in the history.
        [reasoning("rs_3"), call(5, "write_file", path="words.py", content=job.WORDS_PY),
         call(6, "write_file", path="tests/test_top.py", content=job.TEST_TOP_PY)],
        [reasoning("rs_4"), call(7, "shell", command=job.RUN_TESTS)],
        [reasoning("rs_5"), {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [
            {"type": "output_text", "text": "top is there, and tested.", "annotations": []}]}],
    ]

    def user(self, text):
        return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}]

    def calls(self, reply):
        return [agent.Call(item["call_id"], item["name"], json.loads(item["arguments"]))
                for item in reply if item["type"] == "function_call"]

    def add_result(self, history, call, text, failed):
        history.append({"type": "function_call_output", "call_id": call.id, "output": text})

    def __init__(self):
        super().__init__()
        # What this model has made, and which item was made with which reasoning.
        self.made = {item["id"]: item for reply in self.script for item in reply}
        self.made_with = {reply[1]["id"]: reply[0]["id"] for reply in self.script}

    def check(self, items):
        open_calls, seen = [], set()
        for before, item, behind in zip([{}] + items, items, items[1:] + [{}]):
            id, kind = item.get("id"), item["type"]
            if id in seen:
                raise agent.BadRequest(f"Duplicate item found with id {id}. Remove duplicate items from your input and try again.")
            if id:
                seen.add(id)
            if kind == "reasoning" and item != self.made.get(id):
                raise agent.BadRequest(f"The encrypted content for item {id} could not be verified.")
            if kind == "reasoning" and self.made_with.get(behind.get("id")) != id:
                raise agent.BadRequest(f"Item '{id}' of type 'reasoning' was provided without its required following item.")
            if id in self.made_with and before.get("id") != self.made_with[id]:
                raise agent.BadRequest(f"Item '{id}' of type '{kind}' was provided without its required 'reasoning' item: "
                                       f"'{self.made_with[id]}'.")
            if kind == "function_call":
                open_calls.append(item["call_id"])
            elif kind == "function_call_output":
                if item["call_id"] not in open_calls:
                    raise agent.BadRequest(f"No tool call found for function call output with call_id {item['call_id']}.")
                open_calls.remove(item["call_id"])
        if open_calls:
            raise agent.BadRequest(f"No tool output found for function call {open_calls[0]}.")


if __name__ == "__main__":
    agent.main(OpenAIResponses())
