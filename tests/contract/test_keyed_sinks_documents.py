"""Sinks of documents, held to the contract of sinks with one value per key."""

import uuid

import boto3
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


class TestDynamoDB(KeyedSinkContract):
    @pytest.fixture(autouse=True)
    def place(self, dynamodb):
        self._endpoint, self._name = dynamodb.endpoint, f"t_{uuid.uuid4().hex}"

    def new_sink(self):
        return sinks.DynamoDB(self._name, endpoint=self._endpoint, create=True)

    def new_upserting_sink(self):
        return sinks.DynamoDB(f"{self._name}_upserted", endpoint=self._endpoint, key="id", create=True)

    def stored(self):
        return self._found(self._name)

    def upserted(self):
        return self._found(f"{self._name}_upserted")

    def _found(self, name):
        client = boto3.client(
            "dynamodb",
            endpoint_url=self._endpoint,
            region_name="local",
            aws_access_key_id="local",
            aws_secret_access_key="local",
        )
        items = client.scan(TableName=name, FilterExpression="attribute_not_exists(headrace_deleted)")["Items"]
        client.close()
        return [(int(item["id"]["N"]), item.get("text", {}).get("S")) for item in items]
