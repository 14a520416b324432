"""Whether a deployment would work, looked at from where it is to run: `recallflow doctor`. It changes nothing: no
topic, no file, no group; no text is sent to a model."""

from collections.abc import Iterator

from recallflow.flows.config import Config
from recallflow.flows.doctor_kafka import kafka_findings
from recallflow.flows.doctor_models import auth_findings, model_findings, open_model
from recallflow.flows.doctor_state import state_findings
from recallflow.flows.finding import Finding


def examine(config: Config) -> Iterator[Finding]:
    """Everything there is to look at, as it is found."""
    embedder, found = open_model(config)
    wanted = None if embedder is None else config.enrichment.wanted(embedder)
    broker = False
    for finding in kafka_findings(config, enriches=wanted is not None):
        broker |= (finding.check, finding.status) == ("broker", "OK")
        yield finding
    yield from state_findings(config, embedder)
    yield from found
    yield from model_findings(config)
    yield from auth_findings(config, broker=broker)
