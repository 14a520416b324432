"""Rerankers: a tiny cross-encoder that this file makes, and a service with all that can be wrong with one."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import orjson
import pytest
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, pre_tokenizers

from recallflow.connectors.rerankers import HttpReranker, load_reranker
from recallflow.errors import RerankerError, UsageError
from recallflow.llm import Reranker
from tests import http_server
from tests.unit.operators.harness import make_event

VOCABULARY = ["[PAD]", "[UNK]", "walnuts", "almonds"]
WORTH = [0.0, 0.0, 2.0, 1.0]  # of each word, in this model's eyes
Handler = Callable[[http_server.Handler], None]


def make_model(folder: Path) -> Path:
    worth = np.array(WORTH, np.float32).reshape(-1, 1)
    nodes = [
        helper.make_node("Gather", ["worth", "input_ids"], ["each"], axis=0),
        helper.make_node("ReduceSum", ["each", "axes"], ["logits"], keepdims=0),
    ]
    read = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["pairs", "tokens"])
    found = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["pairs", "one"])
    axes = np.array([1], np.int64)
    tensors = [numpy_helper.from_array(worth, "worth"), numpy_helper.from_array(axes, "axes")]
    graph = helper.make_graph(nodes, "tiny", [read], [found], tensors)
    folder.mkdir(exist_ok=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, str(folder / "model.onnx"))
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(VOCABULARY)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
    for name, content in {
        "config.json": {"pad_token_id": 0},
        "tokenizer_config.json": {"model_max_length": 64, **special},
        "special_tokens_map.json": special,
    }.items():
        (folder / name).write_text(json.dumps(content))
    return folder


def scores(reranker: Reranker, *texts: str) -> list[float]:
    async def ask() -> Sequence[float]:
        return await reranker.score("Which nuts?", texts)

    return [*asyncio.run(ask())]


@pytest.fixture
def run_pipe(cli: Callable[..., Any]) -> Callable[..., list[dict[str, Any]]]:
    def run(events: Sequence[dict[str, Any]], *options: str) -> list[dict[str, Any]]:
        piped = cli("pipe", *options, stdin=b"\n".join(map(orjson.dumps, events)))
        return [orjson.loads(line) for line in piped.stdout.splitlines()]

    return run


def load(name: str | None, **chosen: Any) -> Reranker | None:
    return load_reranker(name, **{"path": None, "url": None, "key": None, "timeout_s": 5.0} | chosen)


def test_a_cross_encoder_reads_each_text_with_the_question(tmp_path: Path) -> None:
    model = load("tests/tiny", path=make_model(tmp_path / "model"))
    assert model is not None
    assert scores(model, "almonds", "no nuts", "almonds and walnuts") == [1.0, 0.0, 3.0]
    assert load("tests/tiny", path=tmp_path / "model") is not None  # a second one of the same name


def test_pipe_orders_by_the_model_of_a_folder(tmp_path: Path, run_pipe: Callable[..., list[dict[str, Any]]]) -> None:
    said = ["Ann likes almonds", "Ann likes nuts", "Ann likes walnuts best", "Ann likes tea"]
    told = [make_event("memory", n, id=f"m{n}", content=text) for n, text in enumerate(said)]
    asked = make_event("recall", 1_000, query="What does Ann like?", k=2)
    model = make_model(tmp_path / "model")
    (response,) = run_pipe([*told, asked], "--reranker", "tests/piped", "--model-path", str(model))
    assert [(memory["id"], memory["rerank_score"]) for memory in response["memories"]] == [("m2", 2.0), ("m0", 1.0)]
    assert response["routing_info"]["rerank"]["model"] == "tests/piped"
    assert response["routing_info"]["rerank"]["took_ms"] > 0


@pytest.mark.parametrize(
    ("name", "chosen", "says"),
    [
        (None, {"url": "http://localhost"}, "is missing"), (None, {"path": Path("nowhere")}, "is missing"),
        ("tiny", {"url": "ftp://localhost"}, "must begin with http"), ("tiny", {"url": "http://"}, "name a host"),
        ("tiny", {"url": "http://localhost", "path": Path("nowhere")}, "not both"),
        ("tiny", {"path": Path("nowhere")}, "nowhere has no model.onnx"),
        ("tiny", {"url": "http://h:x"}, "name a host"), ("tiny", {"url": "http://h", "key": "k\n"}, "in one line"),
    ],
)  # fmt: skip
def test_wrong_reranker_option_is_reported(name: str | None, chosen: dict[str, Any], says: str) -> None:
    with pytest.raises((UsageError, RerankerError), match=says):
        load(name, **chosen)


@pytest.fixture
def serve() -> Iterator[Callable[[Handler], str]]:
    """Answer every POST by a handler, at the URL returned."""
    with ExitStack() as stack:

        def served(handle: Handler) -> str:
            service = type("Service", (http_server.Handler,), {"do_POST": handle})
            return f"{stack.enter_context(http_server.serving(service))}/v1/rerank?tier=1"

        yield served


def reply(body: bytes, status: int = 200, length: int | None = None) -> Handler:
    def handle(request: http_server.Handler) -> None:
        request.body()
        request.send_response(status)
        request.send_header("Content-Length", str(len(body) if length is None else length))
        request.end_headers()
        request.wfile.write(body)

    return handle


def test_a_service_is_asked_in_the_usual_shape(serve: Callable[[Handler], str]) -> None:
    asked: list[tuple[str, str | None, Any]] = []

    def handle(request: http_server.Handler) -> None:
        document = orjson.loads(request.body())
        asked.append((request.path, request.headers["Authorization"], document))
        results = [
            {"index": 1, "relevance_score": 0.75, "document": {"text": "b"}}, {"index": 0, "relevance_score": 0.5},
        ]  # fmt: skip
        request.reply(orjson.dumps({"id": "x", "results": results}))

    reranker = HttpReranker("judge", serve(handle), "secret", 5.0)
    assert scores(reranker, "a", "b") == [0.5, 0.75]
    document = {"model": "judge", "query": "Which nuts?", "documents": ["a", "b"], "top_n": 2}
    assert asked == [("/v1/rerank?tier=1", "Bearer secret", document)]


@pytest.mark.parametrize(
    ("handler", "says"),
    [
        (reply(b"", 500), "with status 500"),
        (reply(b"slow down", 429), "with status 429"),
        (reply(b"{"), "the response is invalid"),
        (reply(b"[1]"), "the response is invalid"),
        (reply(b'{"scores": [1, 2]}'), "has no 'results'"),
        (reply(b'{"results": [{"index": 0, "relevance_score": 1}]}'), "for 2 texts has no 1"),
        (reply(b'{"results": [{"index": 0}]}'), "has no 'relevance_score'"),
        (reply(b'{"results": [{"index": 0, "relevance_score": "high"}]}'), "the response is invalid"),
        (reply(b'{"results"', length=500), "the response is invalid"),
        (http_server.Handler.body, "the request failed: RemoteDisconnected"),
    ],
)
def test_wrong_reranker_response_is_reported(serve: Callable[[Handler], str], handler: Handler, says: str) -> None:
    with pytest.raises(RerankerError, match=says):
        scores(HttpReranker("judge", serve(handler), None, 5.0), "a", "b")


def test_silent_service_leaves_the_answer_unranked(
    serve: Callable[[Handler], str], run_pipe: Callable[..., list[dict[str, Any]]]
) -> None:
    done = threading.Event()

    def hang(_: http_server.Handler) -> None:
        done.wait(60)

    told = [make_event("memory", n, content=text) for n, text in enumerate(("Ann likes tea", "Ann likes nuts"))]
    asked = make_event("recall", 1_000, query="What does Ann like?")
    chosen = ("--reranker", "judge", "--reranker-url", serve(hang), "--rerank-timeout-ms", "20")
    (response,) = run_pipe([*told, asked], *chosen)
    done.set()
    assert (response["status"], [warning["code"] for warning in response["warnings"]]) == (
        "degraded", ["rerank_failed"],
    )  # fmt: skip
    assert len(response["memories"]) == 2
