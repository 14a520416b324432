"""An engine on Kafka, from Python: `RecallClient` waits for each call, `AsyncRecallClient` is awaited.

    with RecallClient("localhost:9092", "acme") as client:
        client.add("Ann is allergic to peanuts", user="ann")
        found = client.search("What can't Ann eat?", user="ann")

The names are those of `recallflow.Memory`, the engine in one's own program. A client sees what it wrote: it remembers
where its last write stands for each of the latest 10,000 users, and its questions are answered once that is applied.
What another program wrote is named in `after`. Where an event stands in its topic is also its memory's id, as text,
unless the event brings an `id`.

    RecallflowError
    ├── InvalidRecord     the call's fields are wrong, all named at once: nothing was sent
    ├── UsageError        the call cannot be made with this client, or the client is closed: nothing was sent
    ├── SourceError       Kafka does not let us read responses: check topics and security settings
    ├── DeliveryFailed    Kafka did not acknowledge a record in time: it may still be stored
    ├── QueryFailed       the engine answered with an error
    │   └── CatchingUp        it found nothing, and has not read all memories yet: ask again
    └── QueryTimeout      no response in time: is the engine running? (a TimeoutError too)

Both are thin: every call is one method of `KafkaVerbs` that returns a `concurrent.futures.Future`. Two threads serve a
client, one for delivery reports and deadlines, one for responses. Reconnecting is librdkafka's; what it last
complained of is in the message of whatever runs out of time meanwhile.
"""

from recallflow.client.clients import AsyncRecallClient, RecallClient
from recallflow.errors import CatchingUp, DeliveryFailed, QueryFailed, QueryTimeout

__all__ = ["AsyncRecallClient", "CatchingUp", "DeliveryFailed", "QueryFailed", "QueryTimeout", "RecallClient"]
