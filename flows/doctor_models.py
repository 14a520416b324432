"""What `recallflow doctor` looks at beside Kafka and the state: models, and who may send records."""

import asyncio
from collections.abc import Iterator
from contextlib import closing

import httpx

from recallflow.connectors.embedders import REMOTE, load_remote
from recallflow.connectors.kafka.control import ControlTable
from recallflow.connectors.llm import Endpoint
from recallflow.decisions import History
from recallflow.embedder import Embedder
from recallflow.errors import RecallflowError
from recallflow.flows.config import Config
from recallflow.flows.finding import Finding, fail, ok, warn
from recallflow.flows.token_keys import key_source
from recallflow.flows.trust import trust_of
from recallflow.operators.authorise import Authoriser

ASK_S = 10.0
KEY_REFUSED = (401, 403)
OTHER_MODEL = "put a model's files there, or name another (--{}, --{})"


def open_model(config: Config) -> tuple[Embedder | None, list[Finding]]:
    """The embedder as it says it is, without a call, and what was found of it."""
    engine = config.engine
    try:
        if engine.embedder == REMOTE:
            service = config.embedding.load_service()
            embedder: Embedder = load_remote(service, engine.model_path)
            asyncio.run(service.close())
        else:
            embedder = engine.load_embedder()
    except (RecallflowError, OSError) as error:
        remote = "give the service's key, model and dimension (embedding.key, --embedding-model, --embedding-dimension)"
        todo = remote if engine.embedder == REMOTE else OTHER_MODEL.format("embedder", "model-path")
        return None, [fail("embedder", str(error), todo)]
    return embedder, [ok("embedder", f"{embedder.name}, {embedder.dimension} dimensions")]


def model_findings(config: Config) -> Iterator[Finding]:
    """Of the models that the settings name. No text is sent to any, and no call is charged."""
    engine, llm, embedding = config.engine, config.llm, config.embedding
    if engine.embedder == REMOTE:
        where = Endpoint(embedding.base_url, embedding.key, embedding.headers)
        yield _endpoint("embedding service", embedding.model, where)
    if llm.model is not None:
        yield _endpoint("language model", llm.model, Endpoint(llm.base_url, llm.key, llm.headers))
    if engine.reranker is not None and engine.reranker_url is not None:
        yield _address("reranker", engine.reranker_url)
    elif engine.reranker is not None:
        try:
            engine.load_reranker()
        except (RecallflowError, OSError) as error:
            yield fail("reranker", str(error), OTHER_MODEL.format("reranker", "reranker-path"))
        else:
            yield ok("reranker", f"{engine.reranker} is here")


def _endpoint(check: str, model: str, endpoint: Endpoint) -> Finding:
    """Asks which models there are."""
    headers = dict(endpoint.named_headers)
    if endpoint.key is not None:
        headers["Authorization"] = f"Bearer {endpoint.key}"
    url = f"{endpoint.url.rstrip('/')}/models"
    try:
        answer = httpx.get(url, headers=headers, timeout=ASK_S, follow_redirects=False)
    except httpx.HTTPError as error:
        what = f"{url} cannot be reached: {type(error).__name__}"
        return fail(check, what, "start it, or name another (--llm-url, --embedding-url)")
    if answer.status_code in KEY_REFUSED:
        return fail(check, f"{url} refuses the key ({answer.status_code})", "give another key (llm.key, embedding.key)")
    unknown = warn(check, f"{url} does not say whether it has {model} ({answer.status_code})", "ask it something")
    if answer.status_code != httpx.codes.OK:
        return unknown
    try:
        names = {str(one["id"]) for one in answer.json()["data"]}
    except (ValueError, LookupError, TypeError):
        return unknown
    if model not in names:
        return warn(check, f"{url} does not list {model}", "name a model that it has")
    return ok(check, f"{url} has {model}")


def _address(check: str, url: str) -> Finding:
    try:
        status = httpx.get(url, timeout=ASK_S, follow_redirects=False).status_code
    except httpx.HTTPError as error:
        return fail(check, f"{url} cannot be reached: {type(error).__name__}", "start it, or name it (--reranker-url)")
    return ok(check, f"{url} answers ({status})")


def auth_findings(config: Config, *, broker: bool) -> Iterator[Finding]:
    """Who may send records. `broker`: whether the control topic can be read."""
    try:
        source = key_source(config.auth)
        if source is not None:
            found = source.read()
            for problem in found.problems:
                yield warn("signing keys", problem, "leave it out, or give one that tokens may be signed with")
            yield ok("signing keys", f"{len(found.keys)} in {config.auth.jwks}")
    except (RecallflowError, OSError) as error:
        yield fail("signing keys", str(error), "give a file or an address of a JWKS (auth.jwks)")
    if not broker:
        return
    history = History()
    try:
        opened = ControlTable(config.kafka, config.topics.control, history=history, secret=config.auth.control_secret)
    except RecallflowError as error:
        yield fail("control events", str(error), "create the topic (recallflow topics create), or grant READ on it")
        return
    with closing(opened) as table:
        for reason, count in table.left_out.items():
            todo = "look who writes to the control topic; docs/security.md"
            yield warn("control events", f"{count} do not count ({reason})", todo)
    yield _believed(config, Authoriser(history, trust_of(config.auth, {})))


def _believed(config: Config, authoriser: Authoriser) -> Finding:
    if authoriser.asks():
        return ok("auth", authoriser.describe())
    if config.auth.mode == "off":
        return warn("auth", authoriser.describe(), "set auth.mode=auto, unless nobody but you reaches the topics")
    return warn("auth", authoriser.describe(), "make a key: recallflow keys create")
