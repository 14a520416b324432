"""The JSON Schemas in docs/schemas follow from the models; the AsyncAPI document is consistent."""

import re
from pathlib import Path

import orjson
import pytest

from recallflow.flows.settings import TopicNames
from recallflow.parsing import parse
from recallflow.responses import Receipt
from recallflow.schema import asyncapi, schemas

FOLDER = Path(__file__).parents[2] / "docs" / "schemas"


@pytest.mark.parametrize("name", schemas())
def test_the_documented_schema_is_the_models(name: str) -> None:
    documented = orjson.loads((FOLDER / f"{name}.json").read_bytes())
    assert documented == schemas()[name], f"recallflow schema {name} > docs/schemas/{name}.json"


def test_there_is_no_schema_without_a_model() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(schemas())


def test_asyncapi_has_valid_examples_and_topics() -> None:
    document = asyncapi()
    for message in document["components"]["messages"].values():
        for example in message.get("examples", []):
            payload = example["payload"]
            read = Receipt.model_validate if "outcome" in payload else lambda given: parse(orjson.dumps(given))
            read(payload)
    assert {channel["address"] for channel in document["channels"].values()} == {
        *TopicNames().read(), *TopicNames(audit="audit.log").outputs(), *TopicNames().enrichment_written(),
        TopicNames().enrichment,
    }  # fmt: skip


def test_all_references_resolve() -> None:
    document = asyncapi()
    for place in re.findall(rb'"\$ref":"#/([^"]+)"', orjson.dumps(document)):
        found = document
        for name in place.decode().split("/"):
            found = found[name]
