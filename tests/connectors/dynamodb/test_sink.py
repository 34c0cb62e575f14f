"""The DynamoDB sink, against DynamoDB Local; what that never does is put into its answers."""

import json
import time
import uuid
from contextlib import closing
from dataclasses import replace

import pytest
from botocore.awsrequest import AWSResponse
from pyspark.sql.types import LongType, StructType

from headrace import dev, sinks
from headrace.connectors.dynamodb import client as dynamodb_client
from headrace.connectors.dynamodb.client import WriteUnitLimiter
from headrace.connectors.dynamodb.transactions import WriteRecordsTask, _Record
from headrace.connectors.shared.keyed_sink import Row
from headrace.core.dead_letters import RecordId
from headrace.errors import BadRecord, ConfigError, RetriableError
from headrace.testing.sinks import batch, frame, numbered, upserts
from support.document_sinks import refused, rows, write_around_a_death


@pytest.fixture(scope="module")
def client(dynamodb):
    client = dynamodb_client.connect(None, dynamodb.endpoint)
    yield client
    client.close()


@pytest.fixture
def table():
    return f"t_{uuid.uuid4().hex}"


@pytest.fixture
def made(dynamodb, table):
    """Make a sink on a table of this test's own, open."""
    opened = []

    def make(**options):
        sink = sinks.DynamoDB(table, endpoint=dynamodb.endpoint, **{"create": True, **options}).open("p")
        opened.append(sink)
        return sink

    yield make
    for sink in opened:
        sink.close()


@pytest.fixture
def scan(client, table):
    return lambda: client.scan(TableName=table, ConsistentRead=True)["Items"]


def test_every_type_is_stored_as_its_own_and_nested_values_are_nested(made, spark, scan):
    made().write(
        batch(1, 0, 1),
        rows(
            spark,
            "true AS flag, 7 AS small, 0.1D AS double, 12.50BD AS price, 'x' AS text, '' AS empty, X'00FF' AS raw,"
            f" CAST('{'9' * 38}' AS DECIMAL(38, 0)) AS digits, DATE'2024-02-29' AS day,"
            " TIMESTAMP'2024-02-29 12:00:00.123456' AS at, TIMESTAMP_NTZ'2024-02-29 12:00:00' AS local,"
            " named_struct('last', 'Rowling', 'nothing', CAST(NULL AS STRING)) AS name,"
            " array(1L, NULL) AS list, map('a', 1) AS counts, map(1, 'one') AS numbers,"
            ' parse_json(\'{"email": "x@y", "fax": null}\') AS extra',
        ),
    )
    assert scan() == [
        {
            "pk": {"S": "clicks:0:0"},
            "flag": {"BOOL": True},
            "small": {"N": "7"},
            "double": {"N": "0.1"},
            "price": {"N": "12.5"},
            "text": {"S": "x"},
            "empty": {"S": ""},
            "raw": {"B": b"\x00\xff"},
            "digits": {"N": "9" * 38},
            "day": {"S": "2024-02-29"},
            "at": {"S": "2024-02-29T12:00:00.123456Z"},
            "local": {"S": "2024-02-29T12:00:00.000000"},
            "name": {"M": {"last": {"S": "Rowling"}}},
            "list": {"L": [{"N": "1"}, {"NULL": True}]},
            "counts": {"M": {"a": {"N": "1"}}},
            "numbers": {"L": [{"M": {"key": {"N": "1"}, "value": {"S": "one"}}}]},
            "extra": {"M": {"email": {"S": "x@y"}, "fax": {"NULL": True}}},
        }
    ]


def test_what_cannot_be_stored_is_refused_and_the_rest_of_its_batch_is_stored(made, spark, scan):
    found = refused(
        made(nulls="keep"),
        batch(1, 0, 4),
        rows(
            spark,
            "1.5D AS n, 'fits' AS text",
            "CAST('NaN' AS DOUBLE) AS n, '' AS text",
            "1e300D AS n, '' AS text",
            "1D AS n, repeat('x', 400 * 1024) AS text",
            "CAST(NULL AS DOUBLE) AS n, 'null' AS text",
        ),
    )
    assert sorted(found) == [1, 2, 3]
    assert "n: DynamoDB has no nan" in found[1]
    assert "size" in found[3]
    assert {item["text"]["S"]: item["n"] for item in scan()} == {"fits": {"N": "1.5"}, "null": {"NULL": True}}


def test_an_empty_text_in_the_key_is_refused(made, spark, scan):
    made_ = made(key=("text", "id"))
    assert list(refused(made_, batch(1, 0, 2), frame(spark, [(0, ""), (1, "a")]))) == [0]
    assert [item["id"]["N"] for item in scan()] == ["1"]


def test_what_a_tombstone_leaves_expires(made, spark, scan, client, table):
    sink = made(key="id", keep_deleted_days=2)
    sink.write(batch(1, 0, 2), upserts(spark, (0, 1, "a"), (1, 1, None)))
    (left,) = scan()
    assert set(left) == {"id", "headrace_source", "headrace_version", "headrace_deleted", "headrace_expires"}
    assert abs(int(left["headrace_expires"]["N"]) - time.time() - 2 * 86_400) < 600
    expiry = client.describe_time_to_live(TableName=table)["TimeToLiveDescription"]
    assert expiry["AttributeName"] == "headrace_expires"


def test_a_table_is_made_in_the_class_that_is_asked_for(made, client, table):
    asked = []
    sink = made(key="id", table_class="standard-infrequent-access")
    sink._client.meta.events.register(
        "before-parameter-build.dynamodb.CreateTable", lambda params, **_: asked.append(params["TableClass"])
    )
    sink.prepare(StructType().add("id", LongType()))
    assert asked == ["STANDARD_INFREQUENT_ACCESS"]
    assert client.describe_table(TableName=table)["Table"]["TableStatus"] == "ACTIVE"


def test_a_table_is_made_as_asked_and_rows_are_found_by_its_index(made, spark, client, table):
    sink = made(
        billing={"rcu": 5, "wcu": 6}, indexes={"by_text": ("text", "id")}, stream="new-image", sse=True, nulls="keep"
    )
    sink.write(batch(1, 0, 3), frame(spark, [(0, "a"), (1, "b"), (2, None)]))
    made_ = client.describe_table(TableName=table)["Table"]
    assert made_["ProvisionedThroughput"]["WriteCapacityUnits"] == 6
    assert made_["StreamSpecification"] == {"StreamEnabled": True, "StreamViewType": "NEW_IMAGE"}
    found = client.query(
        TableName=table,
        IndexName="by_text",
        KeyConditionExpression="#t = :t",
        ExpressionAttributeNames={"#t": "text"},
        ExpressionAttributeValues={":t": {"S": "b"}},
    )
    assert [item["id"]["N"] for item in found["Items"]] == ["1"]
    assert client.scan(TableName=table, Select="COUNT")["Count"] == 3, "a NULL is in no index, and no reason to refuse"


def test_a_table_that_does_not_fit_or_is_not_there_is_a_config_error(made, spark, dynamodb, table):
    schema = frame(spark, []).schema
    with pytest.raises(ConfigError, match="no such table") as caught:
        made(create=False).prepare(schema)
    assert "create=True" in caught.value.hint
    made(key="id").prepare(schema)
    with pytest.raises(ConfigError, match="its key is id N, that of the rows text S, id N"):
        made(key=("text", "id")).prepare(schema)
    with pytest.raises(ConfigError, match="has no index by_text"):
        made(key="id", indexes={"by_text": "text"}).prepare(schema)
    with pytest.raises(ConfigError, match="column name pk is reserved"):
        made().prepare(rows(spark, "1 AS pk").schema)
    with pytest.raises(ConfigError, match="flag, which is in a key, is boolean"):
        made(key="flag").prepare(rows(spark, "true AS flag").schema)


class Answers:
    """Puts answers in the place of the server's, the first so many."""

    def __init__(self, client, operation, *answers):
        self.left = list(answers)
        self._client, self._event = client, f"before-send.dynamodb.{operation}"

    def __enter__(self):
        self._client.meta.events.register(self._event, self._answer)
        return self

    def __exit__(self, *_):
        self._client.meta.events.unregister(self._event, self._answer)

    def _answer(self, request, **_):
        if not self.left:
            return None
        status, body = self.left.pop(0)(json.loads(request.body))
        return _Given(request.url, status, json.dumps(body).encode())


class _Given(AWSResponse):
    def __init__(self, url, status, body):
        super().__init__(url, status, {"content-type": "application/x-amz-json-1.0"}, None)
        self._content = body


def failing(code):
    return lambda request: (400, {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": code})


def unprocessed(request):
    return 200, {"UnprocessedItems": request["RequestItems"]}


def writer(sink, spark, source=None):
    """The sink's writer, as it runs on an executor, and 30 rows."""
    write = sink._writer(batch(1, 0, 1), frame(spark, []).schema)
    records = [
        Row((n,), {"id": n, "text": f"row {n}"}, RecordId("clicks", 0, n), source, n if source else None)
        for n in range(30)
    ]
    return write, records


THROTTLED = failing("ProvisionedThroughputExceededException")


def test_throttled_and_unprocessed_items_are_written_in_the_end(made, spark, scan):
    write, records = writer(made(), spark)
    with Answers(
        write.target.client(), "BatchWriteItem", unprocessed, *[THROTTLED] * 4, unprocessed, unprocessed
    ) as answers:
        assert write(records) == []
    assert answers.left == []
    assert sorted(int(item["id"]["N"]) for item in scan()) == list(range(30))


def test_throttled_upserts_are_written_in_the_end(made, spark, scan):
    write, records = writer(made(key="id"), spark, source="s:0")
    with Answers(write.target.client(), "PutItem", *[THROTTLED] * 12) as answers:
        assert write(records) == []
    assert answers.left == []
    assert len(scan()) == 30


def test_throttling_that_does_not_end_is_for_the_runner_to_repeat(made, spark, monkeypatch):
    monkeypatch.setattr(dynamodb_client, "_THROTTLING", replace(dynamodb_client._THROTTLING, within=0.2))
    write, records = writer(made(), spark)
    with (
        Answers(write.target.client(), "BatchWriteItem", *[unprocessed] * 50),
        pytest.raises(RetriableError, match="throttled writes"),
    ):
        write(records)


def test_a_write_that_is_denied_is_a_config_error(made, spark, scan):
    write, records = writer(made(), spark)
    with (
        Answers(write.target.client(), "BatchWriteItem", failing("AccessDeniedException")),
        pytest.raises(ConfigError, match="AccessDenied"),
    ):
        write(records)
    assert scan() == []


def test_a_row_that_is_refused_without_dead_letters_stops_the_run(made, spark):
    with pytest.raises(BadRecord, match=r"(?s)offset 0.*no inf"):
        made().write(batch(1, 0, 1), rows(spark, "CAST('Infinity' AS DOUBLE) AS n"))


def test_writes_are_held_to_their_rate_and_none_is_lost(made, spark, scan):
    write, records = writer(made(write_units_per_second=20), spark)
    assert write.target.units == 20
    began = time.monotonic()
    assert write(records) == []
    assert time.monotonic() - began > 25 / 20, "the second request waits for what the first has spent"
    assert len(scan()) == 30


def test_tasks_at_once_share_the_rate_evenly(made, spark, monkeypatch):
    sink = made(write_units_per_second=20)
    sink.write(batch(1, 0, 1), frame(spark, numbered(0, 1)).repartition(4))
    shared = sink._writer(batch(1, 0, 1), frame(spark, []).schema).target.units
    assert shared == 20 / spark.sparkContext.defaultParallelism


def test_a_limiter_does_not_save_units_that_were_not_used():
    limiter = WriteUnitLimiter(100)
    time.sleep(0.05)
    began = time.monotonic()
    limiter.spend(10)
    limiter.wait()
    assert time.monotonic() - began >= 0.09


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"table": "ab"}, "name of a table"),
        ({"key": ("a", "b", "c")}, "sort key"),
        ({"create": True, "billing": "free"}, "billing"),
        ({"create": True, "stream": "all"}, "stream"),
        ({"create": True, "indexes": {"by": ("a", "b", "c")}}, "expected one or two columns of an index"),
        ({"sse": True}, "for a new table"),
        ({"table_class": "standard"}, "for a new table"),
        ({"table_class": "cold", "create": True}, "table_class: expected one of"),
        ({"write_units_per_second": 0}, "write_units_per_second: expected a number above 0"),
        ({"nulls": "some"}, "nulls"),
        ({"keep_deleted_days": 0}, "keep_deleted_days"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        sinks.DynamoDB(**{"table": "abc", **arguments})


def test_an_endpoint_that_is_not_there_is_an_error_within_seconds():
    began = time.monotonic()
    sink = sinks.DynamoDB("abc", endpoint="http://127.0.0.1:9")
    with pytest.raises(RetriableError, match=r"127\.0\.0\.1:9"):
        sink.open("p")
    sink.close()
    assert time.monotonic() - began < 10


def test_an_endpoint_that_is_none_is_a_config_error():
    with pytest.raises(ConfigError, match="nonsense"):
        sinks.DynamoDB("abc", endpoint="nonsense", region="eu-central-1").open("p")


def test_a_server_that_is_gone_is_an_error_to_repeat_and_when_it_is_back_the_batch_is_stored(tmp_path, spark):
    with (
        dev.DynamoDB(tmp_path) as server,
        sinks.DynamoDB("abc", endpoint=server.endpoint, create=True).open("p") as sink,
    ):
        write_around_a_death(server, sink, spark)
        with closing(dynamodb_client.connect(None, server.endpoint)) as client:
            assert client.scan(TableName="abc", Select="COUNT")["Count"] == 4


def test_without_credentials_or_a_region_it_says_what_to_set(monkeypatch, tmp_path):
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_PROFILE", "AWS_DEFAULT_REGION", "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError) as caught:
        sinks.DynamoDB("abc").open("p")
    assert "region=" in caught.value.hint
    sink = sinks.DynamoDB("abc", region="eu-central-1")
    with pytest.raises(ConfigError) as caught:
        sink.open("p")
    assert "AWS_PROFILE" in caught.value.hint
    sink.close()


def orders(spark, *records):
    """Rows as (offset, order, lines, text): one record has several lines."""
    made = None
    for offset, order, lines, text in records:
        one = rows(spark, f"'{order}' AS id, explode(sequence(1, {lines})) AS line, '{text}' AS text", start=offset)
        made = one if made is None else made.unionByName(one)
    return made


@pytest.fixture
def lines(scan):
    """What is stored, by key."""
    return lambda: {(item["id"]["S"], int(item["line"]["N"])): item["text"]["S"] for item in scan()}


def test_rows_of_one_record_are_stored_in_one_transaction_and_replays_and_late_writers_change_nothing(
    made, spark, lines
):
    sink = made(key=("id", "line"), transactions=True)
    first = orders(spark, (0, "a", 2, "old"), (1, "a", 3, "new"), (2, "b", 100, "most"), (3, "c", 1, "alone"))
    expected = {("a", n): "new" for n in (1, 2, 3)} | {("b", n): "most" for n in range(1, 101)} | {("c", 1): "alone"}
    for _ in range(2):
        sink.write(batch(1, 0, 4), first)
        assert lines() == expected
    sink.write(batch(2, 4, 5), orders(spark, (4, "a", 2, "newest")))
    # A late writer: of what it writes only the line is stored that no newer record has.
    sink.write(batch(1, 1, 2), orders(spark, (1, "a", 4, "new")))
    assert lines() == {**expected, ("a", 1): "newest", ("a", 2): "newest", ("a", 4): "new"}


def test_of_a_record_with_a_row_that_cannot_be_stored_or_too_many_no_row_is_stored(made, spark, lines):
    sink = made(key=("id", "line"), transactions=True)
    two = orders(spark, (2, "c", 2, "fits"))
    too_large = two.selectExpr("id", "line", "IF(line = 2, repeat('x', 500000), text) AS text", "_kafka")
    found = refused(sink, batch(1, 0, 3), orders(spark, (0, "a", 101, "x"), (1, "b", 2, "kept")).unionByName(too_large))
    assert sorted(found) == [0, 2]
    assert "expected at most 100 rows of one record, the limit of a transaction, got 101" in found[0]
    assert "size" in found[2]
    assert lines() == {("b", 1): "kept", ("b", 2): "kept"}
    with pytest.raises(BadRecord, match="got 101"):
        sink.write(batch(1, 0, 1), orders(spark, (0, "a", 101, "x")))


@pytest.mark.parametrize("code", ["TransactionConflict", "ThrottlingError"])
def test_a_transaction_that_meets_another_one_is_repeated(made, spark, lines, code, monkeypatch):
    sink = made(key=("id", "line"), transactions=True)
    schema = orders(spark, (0, "a", 1, "x")).schema
    sink.prepare(schema)
    writer = sink._writer(batch(1, 0, 1), schema)
    real = writer.target.client()
    met = [
        {"CancellationReasons": [{"Code": "None"}, {"Code": code}], "Error": {"Code": "TransactionCanceledException"}}
    ]

    def transact(**request):
        if met:
            raise real.exceptions.TransactionCanceledException(met.pop(), "TransactWriteItems")
        return type(real).transact_write_items(real, **request)

    monkeypatch.setattr(real, "transact_write_items", transact)
    puts = [
        writer.put(Row(("a", n), {"id": "a", "line": n, "text": "x"}, None, "s:0", 5), writer.encoders())
        for n in (1, 2)
    ]
    assert WriteRecordsTask(writer, None)._write(real, None, _Record(RecordId("clicks", 0, 5), puts)) is None
    assert met == []
    assert lines() == {("a", 1): "x", ("a", 2): "x"}


def test_transactions_need_a_key_and_the_record_of_each_row(made, spark):
    with pytest.raises(ConfigError, match="need a key"):
        sinks.DynamoDB("orders", transactions=True)
    with pytest.raises(ConfigError, match="dropped _kafka"):
        made(key="id", transactions=True).prepare(frame(spark, []).select("id", "text").schema)
