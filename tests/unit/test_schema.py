"""The JSON Schemas in docs/ are the models'."""

from pathlib import Path

import orjson
import pytest

from recallflow.schema import schemas

FOLDER = Path(__file__).parents[2] / "docs" / "schemas"


@pytest.mark.parametrize("name", schemas())
def test_the_documented_schema_is_the_models(name: str) -> None:
    documented = orjson.loads((FOLDER / f"{name}.json").read_bytes())
    assert documented == schemas()[name], f"recallflow schema {name} > docs/schemas/{name}.json"


def test_there_is_no_schema_without_a_model() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(schemas())
