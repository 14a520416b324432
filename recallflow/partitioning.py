"""Which partition a key belongs to, by Kafka's own hash: so the state partition of an owner has the number of the
topic's partition that the owner's records lie in, whoever produced them."""

from recallflow.caching import Kept

_KEPT_BYTES = 4 * 1024 * 1024
_MASK = 0xFFFFFFFF
_POSITIVE = 0x7FFFFFFF
_SEED = 0x9747B28C
_M = 0x5BD1E995


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key, 0 ≤ p < `partitions`: the one that Java producers choose, and those made with librdkafka
    with `partitioner=murmur2_random`."""
    return _hashes[key] % partitions


def hash_of(key: bytes) -> int:
    """What the partition of a key is the remainder of."""
    return murmur2(key) & _POSITIVE


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


_hashes = Kept(hash_of, _KEPT_BYTES)
