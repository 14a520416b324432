"""How a Kafka partition is named, and which one a key goes to."""

_MASK = 0xFFFFFFFF
_SEED = 0x9747B28C
_M = 0x5BD1E995


def part_name(topic: str, partition: int) -> str:
    """`topic:00003`, in files and as a part of the sink: zero-padded, as Bytewax sorts parts by name and numbers them
    so."""
    return f"{topic}:{partition:05d}"


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key, 0 ≤ p < `partitions`: the one that Kafka's default partitioner chooses, so that our own
    records of one owner are where a Java producer would put them."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """MurmurHash2, 32 bits, with the seed of Kafka's `Utils.murmur2`."""
    h = _SEED ^ len(data)
    whole = len(data) & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = h * _M & _MASK ^ k
    if rest := data[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15
