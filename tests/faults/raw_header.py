"""A record whose header name is not UTF-8: the client refuses to write one, the library below it does not."""

import ctypes
from pathlib import Path

import confluent_kafka

TIMEOUT_MS = 30_000
PRODUCER = 0
V_END, V_TOPIC, V_PARTITION, V_VALUE, V_KEY, V_HEADERS, V_MSGFLAGS = 0, 1, 3, 4, 5, 10, 7
COPY = 2


def produce(servers: str, topic: str, partition: int, key: bytes, value: bytes, header: tuple[bytes, bytes]) -> None:
    """Writes one record and waits until it is in its topic. RuntimeError where it cannot be."""
    lib = _library()
    errors = ctypes.create_string_buffer(512)
    conf = lib.rd_kafka_conf_new()
    lib.rd_kafka_conf_set(conf, b"bootstrap.servers", servers.encode(), errors, len(errors))
    client = lib.rd_kafka_new(PRODUCER, conf, errors, len(errors))
    if not client:
        raise RuntimeError(errors.value.decode())
    headers = lib.rd_kafka_headers_new(1)
    name, told = header
    lib.rd_kafka_header_add(
        ctypes.c_void_p(headers), name, ctypes.c_ssize_t(len(name)), told, ctypes.c_ssize_t(len(told))
    )
    failed = lib.rd_kafka_producev(
        ctypes.c_void_p(client), *(ctypes.c_int(V_TOPIC), ctypes.c_char_p(topic.encode())),
        *(ctypes.c_int(V_PARTITION), ctypes.c_int32(partition)),
        *(ctypes.c_int(V_VALUE), ctypes.c_char_p(value), ctypes.c_size_t(len(value))),
        *(ctypes.c_int(V_KEY), ctypes.c_char_p(key), ctypes.c_size_t(len(key))),
        *(ctypes.c_int(V_MSGFLAGS), ctypes.c_int(COPY)), *(ctypes.c_int(V_HEADERS), ctypes.c_void_p(headers)),
        ctypes.c_int(V_END),
    )  # fmt: skip
    late = lib.rd_kafka_flush(ctypes.c_void_p(client), TIMEOUT_MS)
    lib.rd_kafka_destroy(ctypes.c_void_p(client))
    if failed or late:
        raise RuntimeError(f"not written: {failed}, {late}")


def _library() -> ctypes.CDLL:
    folder = Path(confluent_kafka.__file__).parent.with_name("confluent_kafka.libs")
    lib = ctypes.CDLL(str(next(folder.glob("librdkafka*.so*"))))
    for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_headers_new"):
        getattr(lib, name).restype = ctypes.c_void_p
    lib.rd_kafka_conf_set.argtypes = [ctypes.c_void_p, *[ctypes.c_char_p] * 3, ctypes.c_size_t]
    lib.rd_kafka_new.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
    return lib
