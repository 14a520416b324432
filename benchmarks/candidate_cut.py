"""What large owners' answers lose by late interaction being worked out for their best memories only.

    python -m benchmarks.candidate_cut [--embedder hash|meaning|static|minilm] [--model-path DIR] [--json FILE]

All conversations become one owner's, each question is ranked by the signal with late interaction for every memory, and
then for the best so many by the other columns; the engine takes the best 200 of a large owner's.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import orjson

from benchmarks.conversation_events import embedder_arguments, embedder_settings, message_lines
from benchmarks.examples import search_index
from benchmarks.locomo import DEPTHS, Conversation, Turn, load, measure, shared
from benchmarks.softmax import SHOWN
from recallflow.connectors.lines import IteratorFeed
from recallflow.embedder import Embedder, embed_texts
from recallflow.flows.embedded import EmbeddedEngine, run_lines
from recallflow.flows.settings import Settings
from recallflow.operators.recall.columns import CUT, Cut, compute
from recallflow.operators.recall.pipeline import participants, vocabulary
from recallflow.operators.recall.question import understand
from recallflow.operators.recall.weights import WEIGHTS, weights_of
from recallflow.state.index import OwnerIndex

BESTS = (400, CUT.best, 100, 50)
OWNER = "all"


def merged(conversations: Sequence[Conversation]) -> Conversation:
    """All as one: ids and sessions with the conversation's own before them."""

    def own(conversation: Conversation, turn: Turn) -> Turn:
        name = conversation.id
        return replace(turn, id=f"{name} {turn.id}", session=f"{name} {turn.session}")

    return Conversation(
        OWNER,
        [own(one, turn) for one in conversations for turn in one.turns],
        [
            replace(question, evidence=frozenset(f"{one.id} {turn}" for turn in question.evidence))
            for one in conversations
            for question in one.questions
        ],
    )


def ranked(index: OwnerIndex, embedder: Embedder, conversation: Conversation, cut: Cut) -> list[list[str]]:
    """Each question's best memories by the signal."""
    ids = [index.ids[slot] for slot in index.conversation.slots]
    known, held = participants(index), vocabulary(index)
    asked = [understand(question.text, known, held) for question in conversation.questions]
    weights, found = weights_of(index, WEIGHTS[embedder.kind]), []
    for question, vectors in zip(asked, embed_texts(embedder, [one.own_words for one in asked]), strict=True):
        score = compute(index, question, vectors, weights, cut=cut).score()
        found.append([ids[place] for place in np.argsort(-score, kind="stable")[: max(DEPTHS)]])
    return found


def figures(settings: Settings, conversation: Conversation) -> dict[str, dict[str, float]]:
    """By what late interaction was worked out for: the measures, and the share of answers that are the same."""
    with EmbeddedEngine.open(settings, None) as embedded:
        lines = message_lines(conversation)
        run_lines(embedded, "locomo", lambda *_: IteratorFeed(iter(lines)), lambda *_: None, rewinds=False)
        index = search_index(embedded, settings, conversation)
        embedder, size = embedded.embedder, len(index)
        cuts = {f"all {size:,}": Cut(size, size)} | {f"best {best}": Cut(0, best) for best in BESTS}
        answers = {name: ranked(index, embedder, conversation, cut) for name, cut in cuts.items()}
    whole, *_ = answers.values()
    return {name: _measures(conversation, lists, whole) for name, lists in answers.items()}


def _measures(conversation: Conversation, lists: list[list[str]], whole: list[list[str]]) -> dict[str, float]:
    each = [measure(ids, asked.evidence) for ids, asked in zip(lists, conversation.questions, strict=True)]
    same = [ids[:10] == others[:10] for ids, others in zip(lists, whole, strict=True)]
    return {name: float(np.mean([one[name] for one in each])) for name in SHOWN} | {"same": float(np.mean(same))}


def main() -> None:
    chosen = embedder_arguments(__doc__).parse_args()
    settings = embedder_settings(chosen)
    found = figures(settings, merged(load(shared("data", "locomo_dev.json"))))
    for name, measures in found.items():
        print(f"{name:<12}" + "  ".join(f"{measure} {value:.3f}" for measure, value in measures.items()))
    if chosen.json:
        chosen.json.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2))


if __name__ == "__main__":
    main()
