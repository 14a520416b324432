"""An agent that remembers: a language model with two tools, on a memory in this process.

python agent.py ann "I moved to Porto. Please remember that."
python agent.py ann "Where do I live?"
"""

import json
import os
import sys
from typing import Any

from openai import OpenAI

from recallflow import Memory

MODEL = os.environ.get("CHAT_MODEL", "gpt-4o-mini")
ROUNDS = 5  # of tool calls: a model that never comes to an end is stopped
SYSTEM = "You help a person. Remember what will matter later, and look up what you were told before you answer."


def _tool(name: str, description: str, parameter: str) -> Any:
    schema = {"type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = [
    _tool("remember", "Keep one fact for later, in a full sentence.", "text"),
    _tool("search", "Look up what is remembered about something.", "query"),
]


def use_tool(memory: Memory, user: str, name: str, arguments: dict[str, str]) -> str:
    """What the model is told of a call."""
    match name:
        case "remember":
            return f"remembered as {memory.add(arguments['text'], user=user).id}"
        case "search":
            found = memory.search(arguments["query"], user=user, k=5)
            return "\n".join(f"{one.created_at[:10]}: {one.content}" for one in found) or "nothing"
    return f"there is no tool {name}"


def answer(model: OpenAI, memory: Memory, user: str, question: str) -> str:
    """The model's answer, after all its calls."""
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    for _ in range(ROUNDS):
        completion = model.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)
        said = completion.choices[0].message
        if not said.tool_calls:
            return said.content or ""
        messages.append(said)
        for call in said.tool_calls:
            if call.type == "function":
                result = use_tool(memory, user, call.function.name, json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return "I could not come to an answer."


def main() -> None:
    user, question = sys.argv[1:]
    with Memory("agent-memory") as memory, OpenAI() as model:
        print(answer(model, memory, user, question))


if __name__ == "__main__":
    main()
