"""Whether a deployment would work, looked at from where it is to run: `recallflow doctor`. It changes nothing: no
topic, no file, no group; no text is sent to a model."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from recallflow.flows.config import Config
from recallflow.flows.doctor_kafka import kafka_findings
from recallflow.flows.doctor_models import auth_findings, model_findings, open_model
from recallflow.flows.doctor_state import state_findings
from recallflow.flows.finding import Finding


def examine(config: Config, directories: Callable[[Path], Sequence[Path]]) -> Iterator[Finding]:
    """Yield the findings about everything, part by part, each cause once. `directories`: see `state_findings`."""
    embedder, found = open_model(config)
    wanted = None if embedder is None else config.enrichment.wanted(embedder)
    kafka = [*kafka_findings(config, enriches=wanted is not None)]
    yield from one_finding_a_cause(kafka)
    yield from one_finding_a_cause(state_findings(config, embedder, directories))
    yield from one_finding_a_cause(found)
    yield from one_finding_a_cause(model_findings(config))
    broker = any((finding.check, finding.status) == ("broker", "OK") for finding in kafka)
    yield from one_finding_a_cause(auth_findings(config, broker=broker))


def one_finding_a_cause(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Join findings that complain of the same: their checks and remedies are listed."""
    joined = dict[object, list[Finding]]()
    for number, one in enumerate(findings):
        joined.setdefault(number if one.status == "OK" else (one.status, one.what), []).append(one)
    for same in joined.values():
        checks, remedies = ({getattr(one, name): None for one in same} for name in ("check", "todo"))
        yield same[0]._replace(check=", ".join(checks), todo="; ".join(remedies))
