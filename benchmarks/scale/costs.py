"""What the model believes about one partition and one process: measured here, each with the command; or assumed, and
said so."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import orjson

RESULTS = Path(__file__).parents[1] / "results"
MEASURED = RESULTS / "partition_cost.json"
ASSUMED = "assumed"
PARTITION_COST = "benchmarks.partition_cost"

Floats = npt.NDArray[np.float64]


class Figure(NamedTuple):
    """One parameter. `source`: the module that measured it, or that nobody did."""

    value: float
    unit: str
    source: str


@dataclass(frozen=True)
class Costs:
    """Parameters of the model. `query_quantiles_s`: what questions cost, from the least to the most in equal steps."""

    message_s: float
    query_quantiles_s: Floats
    cold_query_s: float
    idle_cores: float
    hot_owner_bytes: float
    disk_bytes_a_message: float
    message_bytes: float
    open_s: float
    copy_s_a_byte: float
    # Not measured here: a network, an object store and brokers of their own.
    transport_s: float = 0.005
    handover_s: float = 0.2
    takeover_s: float = 0.2
    rebalance_s: float = 0.5
    stream_bytes_a_s: float = 200e6

    @classmethod
    def measured(cls, path: Path = MEASURED, memories: int = 1_000) -> Self:
        """Those of a run of `benchmarks.partition_cost`, with owners of so many memories. To what a question costs the
        engine comes what it costs `run` beside: reading, sending and the rest, measured with owners of 1,000."""
        found: dict[str, Any] = orjson.loads(path.read_bytes())
        owner, run, partition = found["owners"][f"{memories}"], found["run"], found["partition"]
        beside_s = max(0.0, run["query_ms"] - found["owners"]["1000"]["query_ms"]) / 1e3
        return cls(
            message_s=run["message_us"] / 1e6,
            query_quantiles_s=np.array(owner["query_quantiles_ms"]) / 1e3 + beside_s,
            cold_query_s=max(0.0, owner["first_query_ms"] - owner["query_ms"]) / 1e3,
            idle_cores=run["idle_cores"],
            hot_owner_bytes=max(owner["resident_bytes"], owner["hot_bytes"]),
            disk_bytes_a_message=owner["disk_bytes_a_message"],
            message_bytes=run["message_bytes"],
            open_s=partition["open_s"],
            copy_s_a_byte=partition["copy_s_a_gib"] / 1024**3,
        )

    @property
    def query_s(self) -> float:
        """The mean of a question to an owner in memory."""
        steps = self.query_quantiles_s
        return float((steps[:-1] + steps[1:]).mean() / 2)

    def queries_s(self, shares: Floats) -> Floats:
        """What questions cost, by their places (0 to 1) among all."""
        return np.interp(shares, np.linspace(0, 1, len(self.query_quantiles_s)), self.query_quantiles_s)

    def figures(self) -> dict[str, Figure]:
        """All of them, as a table has them."""
        by, latency = PARTITION_COST, "benchmarks.kafka_latency"
        return {
            "a message, the whole of `run`": Figure(self.message_s * 1e6, "µs", by),
            "a question to an owner in memory, mean": Figure(self.query_s * 1e3, "ms", by),
            "more for one who is not": Figure(self.cold_query_s * 1e3, "ms", by),
            "a process with nothing to do": Figure(self.idle_cores * 100, "% of a core", by),
            "an owner of 1,000 memories in memory": Figure(self.hot_owner_bytes / 1024, "KiB", by),
            "a message on disk": Figure(self.disk_bytes_a_message, "bytes", by),
            "a message on the network": Figure(self.message_bytes, "bytes", by),
            "opening a partition": Figure(self.open_s * 1e3, "ms", by),
            "copying its files, on one disk": Figure(self.copy_s_a_byte * 1024**3, "s/GiB", by),
            "on the way over Kafka and back, beside the engine": Figure(self.transport_s * 1e3, "ms", latency),
            "finishing what is under way, and flushing": Figure(self.handover_s * 1e3, "ms", ASSUMED),
            "reading a partition's place, and the outputs' tails": Figure(self.takeover_s * 1e3, "ms", ASSUMED),
            "a rebalance among the group's members": Figure(self.rebalance_s * 1e3, "ms", ASSUMED),
            "an object store gives one reader": Figure(self.stream_bytes_a_s / 1e6, "MB/s", ASSUMED),
        }
