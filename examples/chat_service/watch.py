"""A stream consumer: how many answers were given, and how many of them knew nothing. One line for each.

python watch.py --count 1
"""

import argparse
import os

from confluent_kafka import Consumer, KafkaException

from recallflow import Response


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topic", default="recall.responses")
    parser.add_argument("--group", default="recall-watch")
    parser.add_argument("--count", type=int, help="end after so many")
    options = parser.parse_args()
    servers = os.environ.get("KAFKA_BOOTSTRAP_SERVERS", "localhost:9092")
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": options.group,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",  # the engine writes in transactions
        }
    )
    consumer.subscribe([options.topic])
    answers = empty = 0
    try:
        while options.count is None or answers < options.count:
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error():
                raise KafkaException(message.error())
            response = Response.model_validate_json(message.value() or b"")
            answers += 1
            empty += not response.memories
            best = response.memories[0].content if response.memories else "nothing"
            print(f"{response.query_id} {response.status}: {best} ({empty} of {answers} knew nothing)", flush=True)
    except KeyboardInterrupt:
        pass
    finally:
        consumer.close()


if __name__ == "__main__":
    main()
