"""The installed distribution: its version, and remedies for missing libraries. Imports nothing of the package."""

from importlib.util import find_spec

__version__ = "0.1.0"
_EMBEDDED = "recallflow-embedded"
_EXTRAS = {"mcp": "mcp"} | dict.fromkeys(("fastapi", "httptools", "starlette", "uvicorn", "uvloop"), "serve")
# Extras of recallflow-embedded alone: recallflow always includes these libraries.
_EMBEDDED_EXTRAS = {"httpx": "llm", "jsonschema": "llm", "networkx": "graph", "openai": "llm", "opentelemetry": "otel"}
_REPLACE = "recallflow-embedded has no {library}: pip uninstall recallflow-embedded, and pip install recallflow"


def install(extra: str) -> str:
    """Return the command that installs an extra of the installed distribution."""
    name = "recallflow-client" if find_spec("recallflow.state") is None else "recallflow"
    return f"pip install '{_EMBEDDED if _is_embedded() else name}[{extra}]'"


def remedy_for(missing: ModuleNotFoundError) -> str | None:
    """Return the missing library with a remedy; None for a library that every installation of the engine has."""
    library = (missing.name or "").partition(".")[0]
    if find_spec("recallflow.state") is None:
        return "recallflow-client is the Kafka client alone; the engine and the commands: pip install recallflow"
    if _is_embedded():
        extra = _EMBEDDED_EXTRAS.get(library)
        module = missing.name if library == "recallflow" else library
        return f"{library} is not installed: {install(extra)}" if extra else _REPLACE.format(library=module)
    return f"{library} is not installed: {install(_EXTRAS[library])}" if library in _EXTRAS else None


def _is_embedded() -> bool:
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        distribution(_EMBEDDED)
    except PackageNotFoundError:
        return False
    return True
