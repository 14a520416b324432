"""The enrichment flow against Kafka: requests in, results of models out."""

import asyncio
import contextlib
import logging
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

from recallflow.connectors.kafka.hub import Ways
from recallflow.connectors.kafka.topic_reader import await_brokers
from recallflow.connectors.llm.policy import Meter
from recallflow.connectors.probes import Probes
from recallflow.decisions import History, categories
from recallflow.enrichment import EnrichmentResult
from recallflow.errors import MembershipLost, UsageError
from recallflow.flows.config import Config
from recallflow.flows.engine_metrics import Stages
from recallflow.flows.enrich_steps import Reader, recipe
from recallflow.flows.first_places import first_enrichment_places
from recallflow.flows.gc_policy import SWITCH_S
from recallflow.flows.member import GroupMember
from recallflow.flows.metrics import EnrichmentCounter, EnrichmentMetrics, EnrichmentRunning
from recallflow.flows.ownership import NoFolders
from recallflow.flows.record_spans import Journeys
from recallflow.flows.router import Router, routing, stop_on_signals
from recallflow.flows.runner import Recipe, epoch_ms, run
from recallflow.llm import Completion, Embedded, EmbeddingService, LanguageModel, Prompt
from recallflow.operators.async_call import Completions, Runtime
from recallflow.operators.enrichment.enrich import enrich
from recallflow.operators.enrichment.plan import Thresholds
from recallflow.operators.enrichment.results import Asked
from recallflow.operators.enrichment.step import Enricher
from recallflow.records import Position
from recallflow.state.directory import DESCRIPTION, hold

LLM_SPENDING, EMBEDDING_SPENDING = "llm.spent", "embedding.spent"
OPEN_TO_CAPACITY = 4  # open requests for each call that may be under way …
OPEN_MOST = 1_000  # … and as many as the metadata of an offset can name
WAYS = Ways(
    "go on without them (recallflow enrich --give-up-unanswered)",
    "start with another --deployment, which goes on with what is left",
    "let them come twice (recallflow enrich --accept-repeats)",
)

_log = logging.getLogger(__name__)


class EnrichmentModels(NamedTuple):
    """A language model, if one is named, and an embedding service; and what each costs."""

    model: LanguageModel | None
    embeddings: EmbeddingService
    meters: Sequence[Meter]
    thresholds: Thresholds
    decisions: History

    async def enrich(self, asked: Sequence[Asked], at_ms: int) -> Sequence[EnrichmentResult]:
        """One result for each request, in their order, by what the tenant's operator had decided at a time."""
        known = categories(self.decisions, asked[0].request.tenant_id, at_ms)
        described = {one.name: one.description for one in known}
        return await enrich(asked, self.model, self.embeddings, self.thresholds, described)


@contextlib.contextmanager
def open_models(config: Config, runtime: Runtime, decisions: History) -> Iterator[EnrichmentModels]:
    """The models, on the loop of async calls. What tenants spent today is kept in the state directory."""
    folder, chosen = config.named_state_dir(), config.enrichment
    thresholds = Thresholds(chosen.relationship_confidence, chosen.semantic_confidence)
    with ExitStack() as stack:
        model, meters = None, []
        opened = config.llm.load_model("enrichment", decisions, folder / LLM_SPENDING)
        if opened is not None:
            stack.callback(lambda: runtime.run(opened.close()))
            model = _ModelInTurn(opened, config.llm.capacity)
            meters.append(opened.meter)
        service = config.embedding.load_service("enrichment", decisions, folder / EMBEDDING_SPENDING)
        stack.callback(lambda: runtime.run(service.close()))
        meters.append(service.meter)
        yield EnrichmentModels(model, _ServiceInTurn(service, config.embedding.capacity), meters, thresholds, decisions)


class _ModelInTurn:
    """A language model that is asked so many questions at a time; a further one waits for its turn."""

    def __init__(self, model: LanguageModel, capacity: int) -> None:
        self.name = model.name
        self._model = model
        self._places = asyncio.Semaphore(capacity)

    async def complete(self, tenant_id: str, prompt: Prompt) -> Completion:
        async with self._places:
            return await self._model.complete(tenant_id, prompt)


class _ServiceInTurn:
    """An embedding service, likewise."""

    def __init__(self, service: EmbeddingService, capacity: int) -> None:
        self.name, self.dimension = service.name, service.dimension
        self._service = service
        self._places = asyncio.Semaphore(capacity)

    async def embed(self, tenant_id: str, texts: Sequence[str]) -> Embedded:
        async with self._places:
            return await self._service.embed(tenant_id, texts)


class EnrichFlow:
    """A member of a deployment of the enrichment flow."""

    def __init__(self, config: Config) -> None:
        """Raises UsageError where no state directory is named, or no language model for what is to be asked of one."""
        if config.llm.model is None and (tasks := config.enrichment.llm_tasks()):
            raise UsageError(f"llm.model is not set, and {', '.join(tasks)} asks a language model: give --llm NAME")
        self._config, self._state_dir = config, config.named_state_dir()
        self._stopping = threading.Event()

    def run(self) -> None:
        """Run until SIGTERM or SIGINT. The next owner of a partition asks its open requests again. A second signal ends
        the process at once. A member that was away for longer than its session joins again. Raises the error that
        stopped the flow."""
        chosen = self._config.run
        with ExitStack() as stack:
            metrics = EnrichmentMetrics()
            if (port := chosen.metrics_port) is not None:
                stack.enter_context(Probes(chosen.metrics_host, port, metrics.registry, metrics.obstacle))
            stack.enter_context(hold(self._state_dir, create=True))
            if (self._state_dir / DESCRIPTION).exists():
                raise UsageError(f"{self._state_dir} holds memories: give the enrichment flow a --state-dir of its own")
            if self._config.llm.model is None:
                _log.warning("llm.model is not set: requests that ask a language model are answered without one")
            while not self._stopping.is_set():
                try:
                    self._run(metrics)
                except MembershipLost as error:
                    _log.warning("%s; joining anew", error)
                    await_brokers(self._config.kafka, self._stopping)
                else:
                    return

    def _run(self, metrics: EnrichmentMetrics) -> None:
        with ExitStack() as stack:
            member = EnrichmentMember(self._config, stack, self._stopping)
            metrics.watch(member.running)
            stop_on_signals(member.source)
            stack.enter_context(member.watch.running())
            sys.setswitchinterval(SWITCH_S)
            with member.joined():
                run(member.recipe())
            _log.info("%s", member.tally.describe())


class EnrichmentMember(GroupMember):
    """A member of a deployment of the enrichment flow."""

    ways = WAYS

    def __init__(self, config: Config, stack: ExitStack, stopping: threading.Event) -> None:
        # Results are read as memories are. Requests are read as queries are: each is answered by itself, in any order.
        inputs = (config.topics.results, config.topics.enrichment)
        super().__init__(config, stack, stopping, inputs, config.topics.enrichment)
        self.tally, self.journeys, decisions = EnrichmentCounter(), Journeys(Stages(inputs)), History()
        self.runtime = stack.enter_context(Runtime(Completions(), config.llm.capacity, timeout_s=None))
        self._open_table(decisions)
        self.models = stack.enter_context(open_models(config, self.runtime, decisions))
        self._follow_topics(self.topics.enrichment_read_for(), self.topics.enrichment_written())
        in_flight_max = min(OPEN_TO_CAPACITY * config.llm.capacity, OPEN_MOST)
        self._open_source(self.runtime.completions, queries_in_flight_max=in_flight_max)
        places = partial(first_enrichment_places, self.options, self.topics, self.ends, self.name)
        self._own_partitions(NoFolders(), places, by_tenants=False)
        self._open_membership()
        self._open_sink()
        self.running = EnrichmentRunning(
            self.state_dir,
            self.source,
            self.tally,
            self.membership,
            self.watch,
            self.connection,
            self.models.meters,
            self.table,
            self.journeys,
        )

    def recipe(self) -> Recipe:
        """Return the dataflow from the source to the sink."""
        settings, journeys = self.config.enrichment, self.journeys
        enricher = Enricher(
            self.runtime,
            self.models.enrich,
            settings.batch_size,
            settings.batch_wait_ms,
            journeys.within,
            self.tally.answered,
            epoch_ms,
        )
        router = Router(self.topics, self.counts, self.sink.most_bytes, self.config.auth, journeys.headers)
        reader = Reader(self.topics.enrichment, self._is_answered, journeys)
        route = routing(router, self.source, self.tally.observe, journeys)
        return recipe(self.source, reader, enricher, route, self.sink)

    def _is_answered(self, position: Position) -> bool:
        """Return whether an earlier owner of the partition sent the result of a request."""
        return self.sent.claim((str(position).encode(), b"0"))
