"""How a Kafka partition is named."""


def part_name(topic: str, partition: int) -> str:
    """Return `topic:00003`."""
    return f"{topic}:{partition:05d}"
