"""Remember and recall over Kafka, from Python: `RecallClient` waits, `AsyncRecallClient` awaits.

    with RecallClient("localhost:9092", "acme") as client:
        at = client.remember("ann", "Ann is allergic to peanuts", kind="fact")
        response = client.recall("ann", "What can't Ann eat?", after=at)

Where a memory stands in its topic is the token to read one's own writes with: a query that names it in `after` is
answered once it is applied. It is also the memory's id, as text, unless the event brings an `id`.

    RecallflowError
    ├── InvalidRecord     the call's fields are wrong, all named at once: nothing was sent
    ├── UsageError        the call cannot be made with this client, or the client is closed: nothing was sent
    ├── SourceError       Kafka does not let us read responses: check topics and security settings
    ├── DeliveryFailed    Kafka did not acknowledge a record in time: it may still be stored
    ├── QueryFailed       the engine answered with an error
    └── QueryTimeout      no response in time: is the engine running? (a TimeoutError too)

Both are thin: every call is one method of `Core` that returns a `concurrent.futures.Future`. Two threads serve a
client, one for delivery reports and deadlines, one for responses. Reconnecting is librdkafka's; what it last
complained of is in the message of whatever runs out of time meanwhile.
"""

from recallflow.client.clients import AsyncRecallClient, RecallClient
from recallflow.errors import DeliveryFailed, QueryFailed, QueryTimeout

__all__ = ["AsyncRecallClient", "DeliveryFailed", "QueryFailed", "QueryTimeout", "RecallClient"]
