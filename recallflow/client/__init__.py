"""Python client of an engine on Kafka: `RecallClient` blocks, the methods of `AsyncRecallClient` are awaited.

    with RecallClient("localhost:9092", "acme") as client:
        client.add("Ann is allergic to peanuts", user="ann")
        found = client.search("What can't Ann eat?", user="ann")

The method names equal the method names of `recallflow.Memory`, the embedded engine. A client reads its own writes: it
keeps the position of the last write for each of the latest 10,000 users, and the engine answers a query after it has
applied that write. Pass `after` to wait for a write of another program. An event's position in its topic, as text, is
its memory's id, unless the event has an `id`.

    RecallflowError
    ├── InvalidRecord     the call's fields are wrong, all named at once: nothing was sent
    ├── UsageError        the call cannot be made with this client, or the client is closed: nothing was sent
    ├── SourceError       Kafka does not let us read responses: check topics and security settings
    ├── DeliveryFailed    Kafka did not acknowledge a record in time: it may still be stored
    ├── QueryFailed       the engine answered with an error
    │   └── CatchingUp        it found nothing, and has not read all memories yet: ask again
    └── QueryTimeout      no response in time: is the engine running? (a TimeoutError too)

Each call is one method of `KafkaVerbs` that returns a `concurrent.futures.Future`. A client has two threads: one for
delivery reports and deadlines, one for responses. librdkafka reconnects by itself; the message of a timeout contains
its last error.
"""

from recallflow.client.clients import AsyncRecallClient, RecallClient
from recallflow.errors import CatchingUp, DeliveryFailed, QueryFailed, QueryTimeout

__all__ = ["AsyncRecallClient", "CatchingUp", "DeliveryFailed", "QueryFailed", "QueryTimeout", "RecallClient"]
