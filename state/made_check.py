"""The check of derived memories against their sources, a part of `verify`."""

from collections.abc import Callable, Iterator

from recallflow.state.rows import CategorySummaryRow, Made, MemoryRow


class MadeCheck:
    """One owner's records about derivation, compared once all are read."""

    def __init__(self) -> None:
        self._sources: dict[int, list[str]] = {}  # of a memory that was made of others, their ids
        self._memories: set[tuple[int, int]] = set()
        self._summaries: set[tuple[int, str, int]] = set()
        self._listed: set[tuple[int, str, int]] = set()

    def add_row(self, row: MemoryRow) -> None:
        """Add a version of a memory."""
        if row.derived_from is not None:
            self._sources[row.seq] = [
                one["memory_id"] for one in (row.derived_from, *row.derived_from.get("others", []))
            ]

    def add_made(self, seq: int, made: Made) -> None:
        """Add the derived memories that a memory lists."""
        self._memories |= {(seq, one) for one in (*made.memories, *made.ended)}
        self._summaries |= {(seq, *one) for one in made.summaries}

    def add_summary(self, summary: CategorySummaryRow) -> None:
        """Add a category summary."""
        self._listed |= {(seq, summary.category, summary.change) for seq in summary.sources}

    def problems(self, seq_of: Callable[[str], int | None]) -> Iterator[str]:
        """Yield all inconsistencies. `seq_of` returns the number of a current memory."""
        said = {(seq_of(memory_id), seq) for seq, found in self._sources.items() for memory_id in found}
        for source, seq in sorted(said ^ self._memories, key=repr):
            yield f"memory {seq}: does not agree with memory {source} that it was made of it"
        for seq, _, change in sorted(self._listed ^ self._summaries):
            yield f"memory {seq}: does not agree with the category summary of change {change} that it was made of it"
