"""The OpenAPI description against an engine: generated requests get documented answers."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from schemathesis import GenerationMode, SerializationContext
from schemathesis.checks import not_a_server_error
from schemathesis.openapi import from_dict
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from recallflow.connectors.http.app import build_app
from recallflow.connectors.http.requests import Limits
from recallflow.connectors.http.routes import LINES
from tests.groups import share
from tests.unit.gateway.serving import Engine, Everybody, Undecided, config_in, local_gateway

DOCUMENT = build_app(Engine(), Everybody(), Undecided(), Limits(), CollectorRegistry()).openapi()
OPERATIONS = {
    f"{method.upper()} {path}": operation
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
}
TRIED = [(name, GenerationMode.POSITIVE) for name in OPERATIONS] + [
    (name, GenerationMode.NEGATIVE)
    for name, operation in OPERATIONS.items()
    if "parameters" in operation or "requestBody" in operation
]
MAX_PATH = 20_000  # characters; uvicorn itself refuses URLs over 64 KiB, and escapes take three bytes
pytestmark = pytest.mark.exhaustive
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@schemathesis.serializer(LINES)
def as_it_is(_: SerializationContext, value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else json.dumps(value, default=str).encode()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("gateway")
    (control := folder / "control.jsonl").touch()
    with local_gateway(config_in(folder), control) as address:
        yield address


@pytest.mark.parametrize(("name", "mode"), TRIED, ids=[f"{name} {mode.value}" for name, mode in TRIED])
def test_generated_requests_get_documented_answers(url: str, name: str, mode: GenerationMode) -> None:
    method, path = name.split(" ")
    operation = from_dict(DOCUMENT)[path][method]

    @settings(max_examples=share(0.12), suppress_health_check=[*HealthCheck])
    @given(st.data())
    def tried(data: st.DataObject) -> None:
        case = data.draw(operation.as_strategy(generation_mode=mode))
        assume(len(case.formatted_path) < MAX_PATH)
        case.call_and_validate(base_url=url, session=session, checks=CHECKS)

    with requests.Session() as session:
        tried()
