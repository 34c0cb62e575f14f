"""The DynamoDB sink, held to the contract suite."""

import uuid

import boto3
import pytest

from headrace import sinks
from headrace.errors import ConfigError
from headrace.testing.sinks import KeyedSinkContract, batch, frame, numbered


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


class TestDynamoDBTransactions(TestDynamoDB):
    def new_upserting_sink(self):
        return sinks.DynamoDB(
            f"{self._name}_upserted", endpoint=self._endpoint, key="id", create=True, transactions=True
        )

    def test_rows_with_a_key_need_no_origin(self, upserting, spark):
        """Here they do need one: it says which rows belong to one transaction."""
        with pytest.raises(ConfigError, match="the transform dropped _kafka"):
            upserting.write(batch(1, 0, 2), frame(spark, numbered(0, 2)).select("id", "text"))
