"""What all members say of themselves, as one process says it: /metrics with the label `member`, and whether all are
ready."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from typing import NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from recallflow.flows.engine_metrics import presence
from recallflow.members.member import Member

ASK_S = 3.0  # a member that was stopped does not answer, and the others have something to say
LABEL = "member"
SUPERVISOR = "supervisor"
OPENMETRICS = {"Accept": "application/openmetrics-text"}  # exemplars are in nothing else
NOT_READY = "not ready: "


class _Answer(NamedTuple):
    status: int
    text: str


class MemberMetrics(Collector):
    """Asks every member when somebody asks."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = members
        self._pool = ThreadPoolExecutor(len(members), "recallflow-members")
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def obstacle(self) -> str:
        """Who is not ready, and why; empty where all are."""
        answers = self._ask("/readyz", {})
        reasons = {
            member.name: "does not answer" if answer is None else answer.text.strip().removeprefix(NOT_READY)
            for member, answer in zip(self._members, answers, strict=True)
            if answer is None or answer.status != 200
        }
        return "; ".join(f"{name}: {reason}" for name, reason in reasons.items())

    def collect(self) -> Iterator[Metric]:
        answers = self._ask("/metrics", OPENMETRICS)
        yield from member_families(
            (member.name, answer is not None, member.restarts)
            for member, answer in zip(self._members, answers, strict=True)
        )
        families: dict[str, Metric] = {}
        _add(families, SUPERVISOR, ProcessCollector(registry=None).collect())
        for member, answer in zip(self._members, answers, strict=True):
            _add(families, member.name, presence("gone") if answer is None else _read(answer.text))
        yield from families.values()

    def _ask(self, path: str, headers: dict[str, str]) -> list[_Answer | None]:
        """What each answers; None where it does not."""
        return [*self._pool.map(lambda member: _asked(member, path, headers), self._members)]


def member_families(members: Iterable[tuple[str, bool, int]]) -> tuple[Metric, Metric]:
    """What a supervisor says of each: its name, whether it answers, how often it was started again."""
    up = GaugeMetricFamily("recallflow_member_up", "Whether a member answers", labels=[LABEL])
    restarts = CounterMetricFamily("recallflow_member_restarts", "Times a member was started again", labels=[LABEL])
    for name, answers, started_again in members:
        up.add_metric([name], answers)
        restarts.add_metric([name], started_again)
    return up, restarts


def _asked(member: Member, path: str, headers: dict[str, str]) -> _Answer | None:
    if not member.runs or member.probes is None:
        return None
    host, port = member.probes.getsockname()
    connection = HTTPConnection(host, port, timeout=ASK_S)
    with suppress(OSError, HTTPException):
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return _Answer(answer.status, answer.read().decode())
        finally:
            connection.close()
    return None


def _read(text: str) -> Iterator[Metric]:
    parse: Callable[[str], Iterator[Metric]] = text_string_to_metric_families
    return parse(text)


def _add(families: dict[str, Metric], name: str, said: Iterable[Metric]) -> None:
    """Puts what one process says beside what others say of the same."""
    for family in said:
        if family.name not in families:
            families[family.name] = Metric(family.name, family.documentation, family.type, family.unit)
        labelled = (sample._replace(labels={LABEL: name} | sample.labels) for sample in family.samples)
        families[family.name].samples.extend(labelled)
