"""Fits the semantic signal's weights, sets for chats between people, of a pair, and with an assistant, and says what
each column is worth on conversations it was not fitted to.

    python -m benchmarks.fit_weights [--embedder NAME] [--model-path DIR] [--kinds KIND,…] [--ablate]
                                     [--json FILE]

Figures that count are the left-out ones: each conversation is ranked with weights fitted to the others (`softmax.py`),
and each kind of chat with weights fitted to the other kinds of its set. The weights printed are fitted to all.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from benchmarks import kinds
from benchmarks.conversation_events import embedder_arguments, embedder_settings
from benchmarks.examples import Examples, examples, without
from benchmarks.softmax import LeftOut, fit, judged, means, sampled
from recallflow.embedder import Kind
from recallflow.operators.recall.weights import WEIGHTS, Chat

TOLD = ("speaker", "speaker_of_two", "speaker_asks", "subject", "date")  # rest on who wrote a message, and on its date
# What a question of each kind counts: that no kind outweighs the others by how many questions it has. Those of `mixed`
# are LoCoMo's and the group's once more.
COUNTS = {"group": 0.25, "mixed": 0.5, "chinese": 0.4, "everyday_languages": 0.5}
KNOWS: Mapping[str, Kind] = {"hash": "spelling", "static": "static", "minilm": "contextual", "meaning": "blended"}
# What each set is fitted to; it ranks its own kind, and people's also pairs.
OF_SET: Mapping[Chat, Sequence[Chat]] = {
    "people": ("people", "pair"),
    "pair": ("people", "pair"),
    "assistant": ("assistant",),
    "notes": ("notes",),
    "unspaced notes": ("unspaced notes",),
}
_SAME = {"mixed": "people", "locomo": "people", "group": "people", "assistant_user": "assistant"}


def origin(one: Examples) -> Hashable:
    """What is left out together: stores made of the same conversation."""
    return _SAME.get(one.kind, one.kind), one.conversation


def gathered(chosen: Any) -> list[Examples]:
    """The examples of all the kinds that were asked for."""
    settings = embedder_settings(chosen)
    return [one for kind in chosen.kinds.split(",") for one in examples(settings, kind, kinds.load(kind))]


def ranked(every: Sequence[Examples], chat: Chat) -> list[Examples]:
    """What the set ranks, of what it is fitted to."""
    return [one for one in every if chat != "pair" or one.chat == chat]


def left_out(every: Sequence[Examples], names: Sequence[str], chat: Chat) -> dict[str, dict[str, float]]:
    """By kind: the measures where each conversation is left out."""
    fits = LeftOut([(origin(one), sampled(one, COUNTS.get(one.kind, 1.0))) for one in every], names, chat)
    rows: dict[str, list[dict[str, float]]] = {}
    for one in ranked(every, chat):
        rows.setdefault(one.kind, []).extend(judged(one.of(names), fits.without(origin(one))))
    return {kind: means(of) for kind, of in rows.items()}


def across(every: Sequence[Examples], names: Sequence[str], chat: Chat) -> dict[str, dict[str, float]]:
    """By kind: the measures where all that comes of the kind's conversations is left out."""
    found = {}
    samples = [(one, sampled(one, COUNTS.get(one.kind, 1.0))) for one in every]
    for kind in dict.fromkeys(one.kind for one in ranked(every, chat)):
        tested = [one for one in ranked(every, chat) if one.kind == kind]
        out = {origin(one) for one in tested}
        others = [sample for one, sample in samples if origin(one) not in out]
        if others:
            weights = fit(others, names, chat)
            found[kind] = means([row for one in tested for row in judged(one.of(names), weights)])
    return found


def figures(chat: Chat, every: Sequence[Examples], in_use: Mapping[str, float], *, ablate: bool) -> dict[str, Any]:
    """What was measured, by what was done."""
    names = [*in_use]
    rows: dict[str, list[dict[str, float]]] = {}
    for one in ranked(every, chat):
        rows.setdefault(one.kind, []).extend(judged(one.of(names), np.array([*in_use.values()])))
    found = {
        "in use": {kind: means(of) for kind, of in rows.items()},
        "left out": left_out(every, names, chat),
        "kind left out": across(every, names, chat),
        "left out, without author and date": left_out(every, without(names, TOLD), chat),
    }
    if ablate:
        for name in names:
            found[f"left out, without {name}"] = left_out(every, without(names, [name]), chat)
    return found


def main() -> None:
    parser = embedder_arguments(__doc__)
    parser.add_argument("--kinds", default=",".join(kinds.KINDS), help="kinds of chat, by commas (default: all)")
    parser.add_argument("--ablate", action="store_true", help="also fit without each column")
    chosen = parser.parse_args()
    everything, knows = gathered(chosen), KNOWS[chosen.embedder]
    told: dict[str, Any] = {}
    for chat, weights in WEIGHTS[knows].items():
        every = [one for one in everything if one.chat in OF_SET[chat]]
        if ranked(every, chat):
            told[chat] = _of_set(chat, every, weights, ablate=chosen.ablate)
    if chosen.json:
        chosen.json.write_bytes(orjson.dumps(told, option=orjson.OPT_INDENT_2))


def _of_set(chat: Chat, every: Sequence[Examples], weights: Mapping[str, float], *, ablate: bool) -> dict[str, Any]:
    found = figures(chat, every, weights, ablate=ablate)
    fitted = fit([sampled(one, COUNTS.get(one.kind, 1.0)) for one in every], [*weights], chat)
    rounded = dict(zip(weights, (round(float(weight), 2) for weight in fitted), strict=True))
    for label, by_kind in found.items():
        shown = ("/".join(f"{value:.3f}" for value in measures.values()) for measures in by_kind.values())
        print(f"{chat}: {label:<36}" + "  ".join(map(" ".join, zip(by_kind, shown, strict=True))))
    print(f"{chat}, fitted to all: {rounded}")
    return {"figures": found, "fitted": rounded}


if __name__ == "__main__":
    main()
