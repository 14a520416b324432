"""What to install where an import finds no library: one table, for commands and adapters alike."""

import platform
from importlib.util import find_spec

_EXTRAS = {
    "fastapi": "serve",
    "httptools": "serve",
    "mcp": "mcp",
    "starlette": "serve",
    "uvicorn": "serve",
    "uvloop": "serve",
}
_NO_WHEEL = (
    "this runs on Bytewax, which has no wheel for Python {python}: take Python 3.12 "
    "(uv tool install --python 3.12 recallflow), or the container image (docker build -t recallflow .)"
)


def install(extra: str) -> str:
    """The command that installs an extra of the distribution that is installed here."""
    name = "recallflow" if find_spec("recallflow.state") else "recallflow-client"
    return f"pip install '{name}[{extra}]'"


def way_out(missing: ModuleNotFoundError) -> str | None:
    """What is missing and what to do; None where it should have been installed with the engine."""
    library = (missing.name or "").partition(".")[0]
    if find_spec("recallflow.state") is None:
        return "recallflow-client is the Kafka client alone; the engine and the commands: pip install recallflow"
    if library == "bytewax":
        return _NO_WHEEL.format(python=".".join(platform.python_version_tuple()[:2]))
    return f"{library} is not installed: {install(_EXTRAS[library])}" if library in _EXTRAS else None
