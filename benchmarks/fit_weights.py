"""Fits the semantic signal's weights, sets for chats between people, of a pair, and with an assistant, and says what
each column is worth on conversations it was not fitted to.

    python -m benchmarks.fit_weights [--embedder NAME] [--model-path DIR] [--kinds KIND,…] [--ablate]
                                     [--json FILE]

Figures that count are the left-out ones: each conversation is ranked with weights fitted to the others (`softmax.py`),
and each kind of chat with weights fitted to the other kinds of its set. The weights printed are fitted to all.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from benchmarks import kinds
from benchmarks.command_line import names_of, reported_errors, write_json
from benchmarks.conversation_events import embedder_arguments, embedder_settings
from benchmarks.examples import Examples, examples
from benchmarks.softmax import Sample, Weights, fit, judged, means, sampled
from recallflow.embedder import Kind
from recallflow.operators.recall.weights import WEIGHTS, Chat

AUTHOR_AND_DATE = ("speaker", "speaker_of_two", "speaker_asks", "subject", "date")
# What a question of each kind counts: that no kind outweighs the others by how many questions it has. Those of `mixed`
# are LoCoMo's and the group's once more.
COUNTS = {"group": 0.25, "mixed": 0.5, "chinese": 0.4, "everyday_languages": 0.5}
KIND_OF: Mapping[str, Kind] = {"hash": "spelling", "static": "static", "minilm": "contextual", "meaning": "blended"}
# What each set is fitted to; it ranks its own kind, and people's also pairs.
OF_SET: Mapping[Chat, Sequence[Chat]] = {
    "people": ("people", "pair"),
    "pair": ("people", "pair"),
    "assistant": ("assistant",),
    "notes": ("notes",),
    "unspaced notes": ("unspaced notes",),
}
Measures = dict[str, dict[str, float]]  # by kind
_SAME = {"mixed": "people", "locomo": "people", "group": "people", "assistant_user": "assistant"}


def origin(one: Examples) -> Hashable:
    """Return what is left out together: stores of the same conversation share an origin."""
    return _SAME.get(one.kind, one.kind), one.conversation


def ranked(every: Sequence[Examples], chat: Chat) -> list[Examples]:
    """Return the conversations that the set ranks, of those that it is fitted to."""
    return [one for one in every if chat != "pair" or one.chat == chat]


def samples(every: Sequence[Examples]) -> list[tuple[Hashable, Sample]]:
    """Return the sample of each conversation with its origin."""
    return [(origin(one), sampled(one, COUNTS.get(one.kind, 1.0))) for one in every]


def by_kind(tested: Sequence[Examples], names: Sequence[str], weights: Callable[[Examples], Weights]) -> Measures:
    """Return the mean measures of each kind, ranked by each conversation's weights of these columns."""
    rows: dict[str, list[dict[str, float]]] = {}
    for one in tested:
        rows.setdefault(one.kind, []).extend(judged(one.of(names), weights(one)))
    return {kind: means(of) for kind, of in rows.items()}


def left_out(every: Sequence[Examples], names: Sequence[str], chat: Chat) -> Measures:
    """Return the measures of each conversation by weights fitted to those of other origins."""
    sampled_once = samples(every)

    @cache
    def fitted(left: Hashable) -> Weights:
        return fit([sample for of, sample in sampled_once if of != left], names, chat)

    return by_kind(ranked(every, chat), names, lambda one: fitted(origin(one)))


def kind_left_out(every: Sequence[Examples], names: Sequence[str], chat: Chat) -> Measures:
    """Return the measures of each kind by weights fitted to conversations of other kinds and origins."""
    found: Measures = {}
    sampled_once = samples(every)
    for kind in dict.fromkeys(one.kind for one in ranked(every, chat)):
        tested = [one for one in ranked(every, chat) if one.kind == kind]
        out = {origin(one) for one in tested}
        if others := [sample for of, sample in sampled_once if of not in out]:
            weights = fit(others, names, chat)
            found |= by_kind(tested, names, lambda _, weights=weights: weights)  # type: ignore[misc]
    return found


def figures(chat: Chat, every: Sequence[Examples], in_use: Mapping[str, float], *, ablate: bool) -> dict[str, Measures]:
    """Return the measures of the weights in use and of fits, by kind."""
    names, in_use_now = [*in_use], np.array([*in_use.values()])
    found = {
        "in use": by_kind(ranked(every, chat), names, lambda _: in_use_now),
        "left out": left_out(every, names, chat),
        "kind left out": kind_left_out(every, names, chat),
    }
    ablated = {"author and date": AUTHOR_AND_DATE} | ({name: (name,) for name in names} if ablate else {})
    for label, columns in ablated.items():
        kept = [name for name in names if name not in columns]
        found[f"left out, without {label}"] = left_out(every, kept, chat)
    return found


@reported_errors()
def main(argv: Sequence[str] | None = None) -> None:
    parser = embedder_arguments(__doc__)
    parser.add_argument(
        "--kinds", type=names_of(kinds.KINDS), default=kinds.KINDS, help="kinds of chat, by commas (default: all)"
    )
    parser.add_argument("--ablate", action="store_true", help="also fit without each column")
    chosen = parser.parse_args(argv)
    settings, loaded = embedder_settings(chosen), {kind: kinds.load(kind) for kind in chosen.kinds}
    measured = dict[str, Any]()
    everything = [one for kind, of in loaded.items() for one in examples(settings, kind, of)]
    for chat, weights in WEIGHTS[KIND_OF[chosen.embedder]].items():
        every = [one for one in everything if one.chat in OF_SET[chat]]
        if ranked(every, chat):
            measured[chat] = _of_set(chat, every, weights, ablate=chosen.ablate)
    write_json(measured, chosen.json)


def _of_set(chat: Chat, every: Sequence[Examples], weights: Mapping[str, float], *, ablate: bool) -> dict[str, Any]:
    found = figures(chat, every, weights, ablate=ablate)
    fitted = fit([sample for _, sample in samples(every)], [*weights], chat)
    rounded = dict(zip(weights, (round(float(weight), 2) for weight in fitted), strict=True))
    for label, of in found.items():
        shown = (f"{kind} " + "/".join(f"{value:.3f}" for value in measures.values()) for kind, measures in of.items())
        print(f"{chat}: {label:<36}" + "  ".join(shown))
    print(f"{chat}, fitted to all: {rounded}")
    return {"figures": found, "fitted": rounded}


if __name__ == "__main__":
    main()
