"""What the gateway of HBase says, in our own terms."""

import pytest

from headrace.connectors.hbase import client
from headrace.errors import ConfigError, RetriableError

HBASE = "org.apache.hadoop.hbase"


@pytest.mark.parametrize(
    ("message", "kind", "hint"),
    [
        (f"{HBASE}.TableNotFoundException: rows", ConfigError, "grant"),
        (
            f"Failed 1 action: {HBASE}.exceptions.FailedSanityCheckException: Timestamp for KV",
            ConfigError,
            "permanently",
        ),
        (f"Failed 2 actions: {HBASE}.DoNotRetryIOException: no\n\tat {HBASE}.Some.call", ConfigError, "permanently"),
        (f"{HBASE}.DoNotRetryIOException: hconnection-0x5 closed\n\tat {HBASE}.Some.call", RetriableError, "up"),
        (f"{HBASE}.RegionTooBusyException: over memstore limit", RetriableError, "up"),
    ],
)
def test_what_hbase_would_not_try_again_is_not_repeated(message, kind, hint):
    import happybase  # noqa: F401  # makes the module Hbase_thrift
    from Hbase_thrift import IOError as Refused

    with pytest.raises(kind) as caught, client.translate_error("sink", "grant"):
        raise Refused(message=message.encode())
    assert type(caught.value) is kind
    assert hint in caught.value.hint
    assert "\n" not in caught.value.message
