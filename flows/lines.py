"""Lines through the dataflow, on Bytewax: they may come slowly, come again after a kill, and go to several workers."""

import time
from collections.abc import Callable, Iterator

from bytewax import operators as op
from bytewax.dataflow import Dataflow

from recallflow.connectors.line_parts import LineSink, LineSource
from recallflow.connectors.lines import Delivered, Delivery, Feed
from recallflow.flows.dataflow import recovery_store, run_dataflow
from recallflow.flows.embedded import Embedded
from recallflow.flows.engine import build
from recallflow.flows.order import decided
from recallflow.flows.recovery import LINES_FLOW_ID
from recallflow.outputs import Done, Marked, Output
from recallflow.parsing import ends_turn
from recallflow.records import Position


def run_lines(
    embedded: Embedded,
    topic: str,
    open_feed: Callable[[int], Feed],
    deliver: Delivery,
    *,
    rewinds: bool,
    workers: int = 1,
    clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> None:
    """Runs the dataflow until the feed ends. `topic` names the feed in positions.

    A feed that `rewinds` begins at the last snapshot, and what was applied since is passed over. Another one only
    ever brings new lines: they are numbered behind everything that was applied. Once they have ended, the state says
    so of them all: who opens the directory without a dataflow next looks into no recovery store.
    """
    directory, embedder = embedded.directory, embedded.embedder
    # A run that leaves nothing behind has nothing to recover.
    recovery = recovery_store(directory.path) if embedded.lasting else None
    applied = (one.applied.get(f"{topic}:0", -1) for one in directory.existing_partitions())
    floor = 0 if rewinds else 1 + max(applied, default=-1)
    source = LineSource(topic, open_feed, floor, clock_ms, ends_turn)
    rules = embedded.rules()
    flow = Dataflow(LINES_FLOW_ID)
    ahead = None if embedded.ahead is None else embedded.ahead.embed
    outputs = build(flow, source, directory, embedder, rules, models=embedded.asked, ahead=ahead)

    def decide(batch: list[tuple[str, Output | Marked]]) -> Iterator[tuple[str, Delivered | Done]]:
        for key, output in batch:
            if not isinstance(output, Marked):
                yield from ((key, one) for one in decided(rules.decisions, lambda _: None, [output]))

    op.output("outputs", op.flat_map_batch("decide", outputs, decide), LineSink(source, deliver))
    run_dataflow(flow, embedded.settings, workers, recovery)
    if not rewinds and source.delivered > floor:
        directory.pass_over(Position(topic, 0, source.delivered - 1))
        if embedded.lasting:
            directory.sync()
