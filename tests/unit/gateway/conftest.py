"""One gateway before a fake engine for each module; every test finds the fakes as new."""

from collections.abc import Iterator

import httpx
import pytest

from recallflow.connectors.http.requests import Limits
from tests.unit.gateway.serving import Engine, Everybody, gateway


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine()


@pytest.fixture(scope="module")
def everybody() -> Everybody:
    return Everybody()


@pytest.fixture(scope="module")
def limits() -> Limits:
    """Return the limits of the module's gateway; a module may override this."""
    return Limits()


@pytest.fixture(scope="module")
def client(engine: Engine, everybody: Everybody, limits: Limits) -> Iterator[httpx.Client]:
    with gateway(engine, everybody, limits) as opened:
        yield opened


@pytest.fixture(autouse=True)
def as_new(engine: Engine, everybody: Everybody) -> None:
    engine.__init__()  # type: ignore[misc]
    everybody.__init__()  # type: ignore[misc]
