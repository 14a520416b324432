"""Sending control events of the engine's own."""

from collections.abc import Sequence

from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.admin import ask_configs
from recallflow.connectors.kafka.patience import Patience
from recallflow.connectors.kafka.sender import Sender
from recallflow.control import Control
from recallflow.signatures import signed


class Decide:
    """Sends decisions to the control topic, signed where there is a secret. Several processes may send the same one."""

    def __init__(self, options: KafkaOptions, topic: str, secret: str | None) -> None:
        self._options, self._topic, self._secret = options, topic, secret

    def __call__(self, events: Sequence[Control]) -> None:
        """Returns once the brokers have them all. Raises SinkError."""
        most_bytes = {self._topic: ask_configs(self._options, [self._topic])[self._topic].most_bytes}
        sender = Sender(self._options, most_bytes, then="they are sent again")
        for event in events:
            key, value = event.record_key, event.model_dump_json(exclude_none=True).encode()
            sender.send(self._topic, value, key, headers=signed(self._secret, key, value))
        sender.flush(Patience())
