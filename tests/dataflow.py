"""Lines of events through the dataflow, where a test is about what that keeps."""

from collections.abc import Sequence
from pathlib import Path

from recallflow.connectors.lines import Delivered, IteratorFeed
from recallflow.decisions import History
from recallflow.flows.embedded import Embedded, Processed
from recallflow.flows.lines import run_lines
from recallflow.flows.settings import Settings
from recallflow.state.sources import ONE_RUNS_LOG


def through_dataflow(
    lines: Sequence[bytes], settings: Settings, state_dir: Path | None = None, decisions: History | None = None
) -> Processed:
    """What `process` gives."""
    processed, first = Processed(), list[int]()

    def open_feed(offset: int) -> IteratorFeed:
        first.append(offset)
        return IteratorFeed(iter(lines))

    def collect(offset: int, outputs: list[Delivered]) -> None:
        for output in outputs:
            processed.add(offset - first[0] + 1, output)

    with Embedded.open(settings, state_dir, decisions) as embedded:
        run_lines(embedded, ONE_RUNS_LOG, open_feed, collect, rewinds=False)
    return processed
