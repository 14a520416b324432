"""The parts of the scores that an answer from the sample conversations has."""

from textwrap import shorten
from typing import Any

import orjson

from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings
from recallflow.samples import sample_path
from tools.pictures.canvas import Canvas

QUESTION = "When is the launch?"
TOLD = (
    f"The question “{QUESTION}” and three memories, each with a bar: as long as its score, in two parts: what "
    "meaning adds to it, and what the other factors do."
)
WIDE = 900  # pixels of a score of 1


def draw() -> str:
    canvas = Canvas(760, 312, TOLD)
    canvas.text(20, 32, QUESTION, "strong")
    for number, memory in enumerate(answer()):
        factors, weights = memory["explanation"]["factors"], memory["explanation"]["weights"]
        meaning, others = (
            factors["semantic"] * weights["semantic"],
            memory["score"] - factors["semantic"] * weights["semantic"],
        )
        y = 52 + 72 * number
        canvas.text(20, y + 14, f"{number + 1}. {memory['content']}")
        canvas.bar(36, y + 22, WIDE * meaning, 16, "a")
        canvas.bar(36 + WIDE * meaning, y + 22, max(WIDE * others, 1.5), 16, "c")
        said = f"{memory['score']:.4f} = {weights['semantic']:g} × {factors['semantic']:.3f} + {others:.4f}; "
        canvas.text(36, y + 53, shorten(said + memory["why"][0]["text"], 96, placeholder=" …"), "small")
    canvas.dot(42, 288, "a")
    canvas.text(54, 292, "meaning: the signal of words, people, dates and vectors", "small")
    canvas.dot(426, 288, "c")
    canvas.text(438, 292, "the other factors, which decide among equals", "small")
    return canvas.svg()


def answer() -> list[dict[str, Any]]:
    """What the engine answers, with explanations."""
    query = {"type": "recall", "tenant_id": "demo", "user_id": "team-atlas", "query": QUESTION, "k": 3, "explain": True}
    events = sample_path("conversations.jsonl").read_bytes().splitlines()
    (response,) = process([*events, orjson.dumps(query)], Settings()).responses
    memories: list[dict[str, Any]] = response["memories"]
    return memories
