"""Adapters to frameworks where a library is missing."""

import importlib
import sys

import pytest

EXTRAS = {
    "flink-agents": "flink_agents", "langchain": "langchain_core", "langgraph": "langgraph",
    "llama-index": "llama_index", "openai-agents": "agents", "pydantic-ai": "pydantic_ai",
}  # fmt: skip


@pytest.mark.parametrize("extra", EXTRAS)
def test_missing_library_names_the_extra(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = f"recallflow.integrations.{extra.replace('-', '_')}"
    for name in [*sys.modules]:
        if name == module or name.partition(".")[0] == EXTRAS[extra]:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, EXTRAS[extra], None)
    with pytest.raises(ImportError, match=rf"recallflow(-client)?\[{extra}\]"):
        importlib.import_module(module)
