"""Document stores of the crash suites: creates the sinks and reads all rows in them."""

import hashlib
import os

from headrace.connectors.dynamodb.sink import DynamoDB
from headrace.connectors.mongo.sink import Mongo


def _name(directory):
    return "t_" + hashlib.sha256(str(directory).encode()).hexdigest()[:16]


def mongo(directory, **how):
    return Mongo(os.environ["MONGO_URL"], f"crash.{_name(directory)}", create=True, **how)


def mongo_rows(directory):
    from pymongo import MongoClient

    with MongoClient(os.environ["MONGO_URL"]) as client:
        return [(found["id"], found["value"]) for found in client["crash"][_name(directory)].find()]


def dynamodb(directory, **how):
    return DynamoDB(_name(directory), endpoint=os.environ["DYNAMODB_ENDPOINT"], create=True, **how)


def dynamodb_rows(directory):
    from headrace.connectors.dynamodb import client as dynamodb_client

    client = dynamodb_client.connect(None, os.environ["DYNAMODB_ENDPOINT"])
    try:
        pages = client.get_paginator("scan").paginate(TableName=_name(directory))
        return [(int(item["id"]["N"]), item["value"]["S"]) for page in pages for item in page["Items"]]
    except client.exceptions.ResourceNotFoundException:
        return []
    finally:
        client.close()


# name, which is also that of its server: (sink, rows). The offsets are in a separate store.
KINDS = {"mongo": (mongo, mongo_rows), "dynamodb": (dynamodb, dynamodb_rows)}
