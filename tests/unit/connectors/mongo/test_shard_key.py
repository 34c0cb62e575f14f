"""The fields of a shard key."""

import pytest

from headrace.connectors.mongo.shard_key import check_cluster_key, check_shard_key
from headrace.errors import ConfigError


@pytest.mark.parametrize(
    ("shard_key", "key", "by_origin", "fields"),
    [
        ("_id", ["user"], False, ("_id",)),
        ("user", ["user"], False, ("user",)),
        (["country", "user"], ["user", "country"], False, ("country", "user")),
        ("_id", [], True, ("_id",)),
        ("country", ["user"], False, None),
        ([], ["user"], False, None),
        ("user", ["user"], True, None),
    ],
)
def test_a_shard_key_is_made_of_the_key_or_of_the_id(shard_key, key, by_origin, fields):
    if fields is None:
        with pytest.raises(ConfigError, match="expected columns of key=, or _id"):
            check_shard_key(shard_key, key, by_origin=by_origin)
    else:
        assert check_shard_key(shard_key, key, by_origin=by_origin) == fields


class Config:
    """A client of a cluster whose `config.collections` has one answer."""

    def __init__(self, found):
        self.found = found

    def __getitem__(self, name):
        return self

    def find_one(self, query):
        assert query == {"_id": "app.rows"}
        return self.found


@pytest.mark.parametrize(
    ("found", "shard_key", "agrees"),
    [
        (None, (), True),
        ({"key": {"user": 1}}, ("user",), True),
        ({"key": {"user": "hashed", "country": 1}}, ("country", "user"), True),
        ({"key": {"_id": "hashed"}}, (), True),
        ({"key": {"_id.user": 1}}, (), True),
        ({"key": {"user": 1}}, (), False),
        ({"key": {"user": 1}}, ("country",), False),
        ({"key": {"user": 1}, "dropped": True}, (), True),
        ({"key": {"user": 1}, "unsplittable": True}, (), True),
        ({}, (), True),
    ],
)
def test_the_cluster_has_the_last_word(found, shard_key, agrees):
    if agrees:
        check_cluster_key(Config(found), "app", "rows", shard_key, "sink")
    else:
        with pytest.raises(ConfigError, match="is sharded by user"):
            check_cluster_key(Config(found), "app", "rows", shard_key, "sink")
