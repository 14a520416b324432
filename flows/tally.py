"""What came out of a running flow, counted."""

from collections import Counter
from collections.abc import Callable, Container, Mapping
from types import MappingProxyType

from recallflow.errors import OverQuota
from recallflow.flows.stages import NO_TRACE, Histogram
from recallflow.outputs import Answer, Audited, DeadLetter, Done, Moved, Output, Receipted, Requested, Routed, Verdict
from recallflow.records import Position
from recallflow.responses import Response


class Tally:
    """Plain numbers that the worker adds to and any other thread reads."""

    def __init__(
        self,
        query_topic: str,
        first_offsets: Mapping[str, int],
        given_before: Mapping[str, Container[int]] = MappingProxyType({}),
        trace_id: Callable[[Position], int] = lambda _: NO_TRACE,
    ) -> None:
        """`first_offsets`: `topic:partition` → the first offset that is new to this run; `given_before`: those behind
        it that are not. `trace_id`: of the trace that the record at a position is in."""
        self.outputs: Counter[str] = Counter()
        self.dead_letters: Counter[str] = Counter()  # by error code
        self.over_quota: Counter[str] = Counter()  # by the name of the quota
        self.requested: Counter[str] = Counter()  # of the enrichment flow, by task
        self.responses: Counter[str] = Counter()  # by status
        self.response_errors: Counter[str] = Counter()  # by error code
        self.warnings: Counter[str] = Counter()  # by code
        self.processed = Histogram()  # responses, by the time that the engine took
        self.waiting = 0  # queries of this run that were set aside
        self._query_topic = query_topic
        self._first_offsets = first_offsets
        self._given_before = given_before
        self._trace_id = trace_id

    def observe(self, output: Output) -> None:
        """Counts one output. Called for each, on the dataflow's thread."""
        match output:
            case Done():
                if output.source.startswith(f"{self._query_topic}:"):
                    self.waiting += sum(self._is_new(output.source, offset) for offset in output.offsets)
                return
            case Answer():
                self.outputs["response"] += 1
                self._observe_response(output.response, output.position)
            case Receipted():
                self.outputs["receipt"] += 1
            case DeadLetter():
                self.outputs["dead_letter"] += 1
                self.dead_letters[output.error.code] += 1
                if isinstance(output.error, OverQuota):
                    self.over_quota[output.error.quota] += 1
            case Requested():
                self.outputs["request"] += 1
                self.requested.update(output.tasks)
            case Verdict():
                self.outputs["verdict"] += 1
            case Audited():
                self.outputs["audit"] += 1
            case Moved():
                self.outputs["moved"] += 1
        if output.number == 0 and output.position.topic == self._query_topic:
            self._count_answered(output)

    def _observe_response(self, response: Response, position: Position) -> None:
        self.responses[response.status] += 1
        if response.error is not None:
            self.response_errors[response.error.code] += 1
        for warning in response.warnings:
            self.warnings[warning.code] += 1
        if response.processing_time_ms is not None:
            self.processed.observe(response.processing_time_ms / 1000, self._trace_id(position))

    def _count_answered(self, output: Routed) -> None:
        """The first output of a query has number 0. Queries that wait since an earlier run were never counted as
        waiting."""
        if self._is_new(output.position.source, output.position.offset):
            self.waiting -= 1

    def _is_new(self, source: str, offset: int) -> bool:
        """Whether this run was the first to be given a query."""
        return offset >= self._first_offsets.get(source, 0) and offset not in self._given_before.get(source, ())
