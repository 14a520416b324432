"""How a Kafka partition is named."""


def part_name(topic: str, partition: int) -> str:
    """`topic:00003`, in files and as a part of the sink: zero-padded, as Bytewax sorts parts by name and numbers them
    so."""
    return f"{topic}:{partition:05d}"
