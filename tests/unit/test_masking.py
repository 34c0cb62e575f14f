"""Addresses as they may be shown."""

import pytest

from headrace import stores
from headrace.masking import masked
from headrace.sinks.redis_tasks import Place


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://localhost/app", "postgresql://localhost/app"),
        ("postgresql://ann@localhost:5432/app", "postgresql://ann@localhost:5432/app"),
        ("postgresql://ann:secret@localhost/app", "postgresql://ann:***@localhost/app"),
        ("postgresql://ann:se:cr@et@localhost/app", "postgresql://ann:***@localhost/app"),
        ("postgresql://ann:sec/ret@localhost/app", "postgresql://ann:***@localhost/app"),
        ("postgresql://h/app?user=ann&password=secret&x=1", "postgresql://h/app?user=ann&password=***&x=1"),
        ("redis://:secret@localhost:6379/0", "redis://:***@localhost:6379/0"),
        ("host=h user=ann", "host=h user=ann"),
        ("host=h password=sec&ret user=ann", "host=h password=*** user=ann"),
        ("password = 'sec \\' ret' host=h", "password = *** host=h"),
        ("host=h PASSWORD=secret", "host=h PASSWORD=***"),
        ("host=h sslpassword=secret", "host=h sslpassword=***"),
        ("host=h password='secret", "host=h password=***"),
    ],
)
def test_a_password_is_never_shown(address, shown):
    assert masked(address) == shown


@pytest.mark.parametrize(
    "made",
    [
        Place("redis://:secret@localhost", "users", "sink"),
        stores.Redis("redis://:secret@localhost").marks("p", 1.0),
        stores.Postgres("postgresql://ann:secret@localhost/app").marks("p", 1.0),
    ],
    ids=lambda made: type(made).__name__,
)
def test_nor_in_what_goes_to_the_executors(made):
    assert "secret" not in repr(made)
