"""What closes a part never raises: Bytewax closes parts while an error is on its way."""

import pytest

from recallflow.connectors.kafka.closing import Closing
from recallflow.errors import SinkError


def test_the_first_failure_is_kept_and_raised_from_one_place() -> None:
    closing = Closing()
    closing.check()

    def fail(error: BaseException) -> None:
        raise error

    closing(lambda: fail(SinkError("first")))
    closing(lambda: fail(KeyboardInterrupt()))
    with pytest.raises(SinkError, match="first"):
        closing.check()
