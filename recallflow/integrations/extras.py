"""What an adapter says where the library that it adapts to is not installed."""

from collections.abc import Iterator
from contextlib import contextmanager

from recallflow.extras import install


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Around the imports of the extra of this name. Raises ImportError that says what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        adapter = f"recallflow.integrations.{name.replace('-', '_')}"
        library = (error.name or "its library").partition(".")[0]
        raise ImportError(f"{adapter} needs {library}: {install(name)}") from None
