"""The settings of the gateway."""

from dataclasses import dataclass

from recallflow.flows.settings import refuse_unless

PORT_MAX = 65_535
WAIT_MAX_S = 3_600


@dataclass(frozen=True)
class ServeSettings:
    """Where the gateway listens, and how much one request may take.

    `timeout_s`: until a query is answered, or an event applied. `body_timeout_s`: until what is asked for is there,
    headers and body. `concurrency`: requests that are under way at once. `stop_timeout_s`: how long answers under way
    have at the end. `reply_topic`: where answers go in place of the response topic, to `reply_partition` or any one of
    it, and that alone is read."""

    host: str = "127.0.0.1"
    port: int = 8080
    timeout_s: float = 10.0
    body_timeout_s: float = 10.0
    concurrency: int = 512
    stop_timeout_s: float = 15.0
    reply_topic: str | None = None
    reply_partition: int | None = None

    def __post_init__(self) -> None:
        seconds = f"above 0, to {WAIT_MAX_S:,}"
        refuse_unless(
            self,
            ("host", "an address or a name", self.host != ""),
            ("port", "0 to 65,535", 0 <= self.port <= PORT_MAX),
            ("concurrency", "at least 1", self.concurrency >= 1),
            ("reply_partition", "0 or more", self.reply_partition is None or self.reply_partition >= 0),
            ("reply_partition", "of a reply_topic", self.reply_partition is None or self.reply_topic is not None),
            *((name, seconds, 0 < getattr(self, name) <= WAIT_MAX_S)
              for name in ("timeout_s", "body_timeout_s", "stop_timeout_s")),
        )  # fmt: skip
