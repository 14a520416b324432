"""What adapters to frameworks say where a library is missing."""

import subprocess
import sys

SCRIPT = """
import importlib, sys
extras = {
    "langchain": "langchain_core",
    "langgraph": "langgraph",
    "llama-index": "llama_index",
    "openai-agents": "agents",
    "pydantic-ai": "pydantic_ai",
}
for extra, library in extras.items():
    sys.modules[library] = None  # as where it is not installed
    module = "recallflow.integrations." + extra.replace("-", "_")
    try:
        importlib.import_module(module)
    except ImportError as error:
        assert str(error) == f"{module} needs {library}: pip install 'recallflow[{extra}]'", error
        print(extra)
"""


def test_an_adapter_without_its_library_names_the_extra() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    assert done.stdout.split() == ["langchain", "langgraph", "llama-index", "openai-agents", "pydantic-ai"]
