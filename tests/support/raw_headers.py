"""Produces records whose header names are arbitrary bytes, through librdkafka: no Python client can send them."""

from __future__ import annotations

import ctypes
from pathlib import Path

import confluent_kafka

_TOPIC, _VALUE, _HEADER, _END = 1, 4, 9, 0
_PRODUCER = 0


def produce(bootstrap: str, topic: str, value: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    """Produce a record, and wait until the broker has it."""
    (file,) = (Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs").glob("librdkafka-*.so*")
    library = ctypes.CDLL(str(file))
    library.rd_kafka_conf_new.restype = library.rd_kafka_new.restype = ctypes.c_void_p
    said = ctypes.create_string_buffer(512)
    settings = ctypes.c_void_p(library.rd_kafka_conf_new())
    library.rd_kafka_conf_set(settings, b"bootstrap.servers", bootstrap.encode(), said, ctypes.c_size_t(512))
    producer = ctypes.c_void_p(library.rd_kafka_new(_PRODUCER, settings, said, ctypes.c_size_t(512)))
    assert producer.value, said.value
    pairs = [part for name, text in headers for part in (_HEADER, name, text, ctypes.c_size_t(len(text)))]
    sent = [_TOPIC, topic.encode(), _VALUE, value, ctypes.c_size_t(len(value)), *pairs, _END]
    assert library.rd_kafka_producev(producer, *sent) == 0
    assert library.rd_kafka_flush(producer, 30_000) == 0
    library.rd_kafka_destroy(producer)
