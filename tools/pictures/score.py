"""Scores of an answer from the sample conversations, split into signal and other factors."""

from textwrap import shorten
from typing import Any

import orjson

from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings
from recallflow.samples import sample_path
from tools.pictures.canvas import Canvas

QUESTION = "When is the launch?"
DESCRIPTION = (
    f"The question “{QUESTION}” and three memories. A bar shows each score in two parts: the semantic signal and the "
    "other factors."
)
WIDE = 680  # pixels for a score of 1


def draw() -> str:
    canvas = Canvas(760, 312, DESCRIPTION)
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
        shown = f"{memory['score']:.4f} = {weights['semantic']:g} × {factors['semantic']:.3f} + {others:.4f}; "
        canvas.text(36, y + 53, shorten(shown + memory["why"][0]["text"], 96, placeholder=" …"), "small")
    canvas.dot(42, 288, "a")
    canvas.text(54, 292, "semantic signal: words, people, dates and vectors", "small")
    canvas.dot(408, 288, "c")
    canvas.text(420, 292, "other factors: order memories with equal signals", "small")
    return canvas.svg()


def answer() -> list[dict[str, Any]]:
    """Return the memories of the answer, with explanations."""
    query = {"type": "recall", "tenant_id": "demo", "user_id": "team-atlas", "query": QUESTION, "k": 3, "explain": True}
    events = sample_path("conversations.jsonl").read_bytes().splitlines()
    (response,) = process([*events, orjson.dumps(query)], Settings()).responses
    memories: list[dict[str, Any]] = response["memories"]
    return memories
