"""The MongoDB sink, held to the contract suite."""

import uuid

import pytest
from pymongo import MongoClient

from headrace import sinks
from headrace.testing.sinks import KeyedSinkContract


class TestMongo(KeyedSinkContract):
    @pytest.fixture(autouse=True)
    def place(self, mongo):
        self._url, self._name = mongo.url, f"t_{uuid.uuid4().hex}"

    def new_sink(self):
        return sinks.Mongo(self._url, f"contract.{self._name}", create=True)

    def new_upserting_sink(self):
        return sinks.Mongo(self._url, f"contract.{self._name}_upserted", key="id", create=True)

    def stored(self):
        return self._found(self._name)

    def upserted(self):
        return self._found(f"{self._name}_upserted")

    def _found(self, name):
        with MongoClient(self._url) as client:
            found = client["contract"][name].find({"_headrace.deleted": {"$exists": False}})
            return [(document["id"], document.get("text")) for document in found]


class TestMongoFieldUpdates(TestMongo):
    """A tombstone takes the pipeline's own fields away, and leaves the document with its key."""

    def new_upserting_sink(self):
        return sinks.Mongo(self._url, f"contract.{self._name}_upserted", key="id", create=True, update="fields")

    def upserted(self):
        with MongoClient(self._url) as client:
            found = client["contract"][f"{self._name}_upserted"].find({"text": {"$exists": True}})
            return [(document["id"], document["text"]) for document in found]
