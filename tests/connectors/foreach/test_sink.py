"""Code of a user on the executors: what it is given, what a repeat skips, and what a crash in between means."""

import json
import sqlite3
import threading
import uuid
from contextlib import closing
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psycopg
import pytest
import redis as driver

import headrace as hr
from headrace import sinks, stores
from headrace.core.dead_letters import DeadLetter, DeadLetterBatch
from headrace.errors import BadRecord, ConfigError, RetriableError, UnsupportedGuarantee
from headrace.testing.sinks import SinkContract, batch, frame, numbered
from support.command_line import HeadraceProcess


def noting(path):
    """An effect that leaves a line, and stays when its process dies. Nested, so that it travels by value."""

    def note(row):
        with Path(path).open("a") as out:
            out.write(json.dumps([row["id"], row.get("text")]) + "\n")

    return note


@pytest.fixture
def notes(tmp_path):
    return tmp_path / "notes.txt"


def noted(path):
    return [tuple(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


class TestForeach(SinkContract):
    @pytest.fixture(autouse=True)
    def place(self, notes):
        self._path = notes

    def new_sink(self):
        return sinks.Foreach(noting(str(self._path)))

    def stored(self):
        return noted(self._path)


@pytest.fixture(params=["redis", "postgres", "sqlite"])
def keeper(request, tmp_path):
    if request.param == "sqlite":
        return stores.SQLite(tmp_path / "state" / "marks.db")
    server = request.getfixturevalue(request.param)
    return stores.Redis(server.url) if request.param == "redis" else stores.Postgres(server.address)


@pytest.fixture
def pipeline():
    return f"p-{uuid.uuid4().hex[:12]}"


def test_a_repeated_batch_skips_what_is_marked(keeper, pipeline, notes, spark):
    for number, until in enumerate([3, 3, 5]):
        with sinks.Foreach(noting(str(notes)), once=keeper).open(pipeline) as sink:
            sink.write(batch(number, 0, until), frame(spark, numbered(0, until)))
    with sinks.Foreach(noting(str(notes)), once=keeper).open(pipeline) as sink:
        # The offsets were moved back.
        sink.write(replace(batch(4, 0, 5), epoch=1), frame(spark, numbered(0, 5)))
    assert sorted(noted(notes)) == numbered(0, 5)
    with sinks.Foreach(noting(str(notes)), once=keeper).open(f"{pipeline}-other") as sink:
        sink.write(batch(1, 0, 1), frame(spark, numbered(0, 1)))
    assert len(noted(notes)) == 6, "another pipeline has marks of its own"


def test_of_two_that_claim_a_message_at_once_one_has_it(keeper, pipeline):
    marks = keeper.marks(pipeline, 100.0)
    marks.prepare()
    barrier, claims = threading.Barrier(2), []

    def claim():
        with closing(marks.connect()) as marker:
            for number in range(20):
                barrier.wait(10)
                claims.append((number, marker.mark(str(number))))

    threads = [threading.Thread(target=claim) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(number for number, first in claims if first) == list(range(20))
    assert len(claims) == 40


def test_marks_are_forgotten_in_time(pipeline, redis, postgres, tmp_path):
    marks = stores.Redis(redis.url).marks(pipeline, 100.0)
    with closing(marks.connect()) as marker:
        marker.mark("m")
    with driver.Redis.from_url(redis.url) as client:
        assert 0 < client.ttl(f"headrace:mark:{{{pipeline}}}:m") <= 100
    for keeper in (stores.Postgres(postgres.address), stores.SQLite(tmp_path / "m.db")):
        marks = keeper.marks(pipeline, 100.0)
        marks.prepare()
        with closing(marks.connect()) as marker:
            marker.mark("old")
            marker.mark("new")
        with psycopg.connect(postgres.address) as server, closing(sqlite3.connect(tmp_path / "m.db")) as file:
            older = "UPDATE headrace_marks SET marked = marked - 200 WHERE message = 'old'"
            server.execute(older) if isinstance(keeper, stores.Postgres) else file.execute(older)
            file.commit()
        marks.prepare()
        with closing(marks.connect()) as marker:
            assert marker.find_marked(["old", "new"]) == {"new"}


def dying(path, flag):
    """The process dies in the middle of the effect on row 2, the first time: after it, and before it returns."""
    note = noting(path)

    def effect(row):
        import os
        import signal

        note(row)
        if row["id"] == 2 and not Path(flag).exists():
            Path(flag).touch()
            os.kill(os.getpid(), signal.SIGKILL)

    return effect


@pytest.mark.parametrize(("mark", "effects_on_row_2"), [("after", 2), ("before", 1)])
def test_a_crash_between_an_effect_and_its_mark_repeats_that_one_or_none(
    mark, effects_on_row_2, pipeline, notes, tmp_path, spark, redis
):
    effect = dying(str(notes), str(tmp_path / "died"))
    with sinks.Foreach(effect, once=stores.Redis(redis.url), mark=mark).open(pipeline) as sink:
        rows = frame(spark, numbered(0, 5)).coalesce(1)
        with pytest.raises(Exception, match=r"(?i)worker|crash"):
            sink.write(batch(1, 0, 5), rows)
        assert len(noted(notes)) == 3
        sink.write(batch(1, 0, 5), rows)
    assert sorted(noted(notes)) == sorted(numbered(0, 5) + [(2, "row 2")] * (effects_on_row_2 - 1))


def test_a_crash_before_an_effect_loses_it_where_the_mark_comes_first(pipeline, notes, tmp_path, spark, redis):
    path, flag = str(notes), str(tmp_path / "died")

    def effect(row):
        import os
        import signal

        if row["id"] == 2 and not Path(flag).exists():
            Path(flag).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        with Path(path).open("a") as out:
            out.write(json.dumps([row["id"], row["text"]]) + "\n")

    with sinks.Foreach(effect, once=stores.Redis(redis.url), mark="before").open(pipeline) as sink:
        rows = frame(spark, numbered(0, 5)).coalesce(1)
        with pytest.raises(Exception, match=r"(?i)worker|crash"):
            sink.write(batch(1, 0, 5), rows)
        sink.write(batch(1, 0, 5), rows)
    assert [number for number, _ in sorted(noted(notes))] == [0, 1, 3, 4]


def failing(path, error):
    note = noting(path)

    def effect(row):
        if row["id"] == 1:
            raise error("no such address")
        note(row)

    return effect


@pytest.mark.parametrize("mark", ["after", "before"])
def test_what_raises_is_not_done_and_the_batch_is_repeated(mark, pipeline, notes, spark, redis):
    once = {"once": stores.Redis(redis.url), "mark": mark}
    with sinks.Foreach(failing(str(notes), ValueError), **once).open(pipeline) as sink:
        for _ in range(2):
            with pytest.raises(RetriableError, match=r"clicks\[0\] offset 1: ValueError: no such address \(.*line \d+"):
                sink.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
    with sinks.Foreach(noting(str(notes)), **once).open(pipeline) as mended:
        mended.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
    assert sorted(noted(notes)) == numbered(0, 3)


def test_an_effect_may_say_that_its_record_is_bad(notes, spark):
    with sinks.Foreach(failing(str(notes), BadRecord)).open("p") as sink, pytest.raises(BadRecord, match="offset 1"):
        sink.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))


def test_with_dead_letters_the_row_that_raises_is_put_aside(notes, spark):
    sent = []

    def originals(refused):
        return [DeadLetter(r.origin, None, None, None, (), r.error, r.place) for r in refused]

    def write(error):
        with sinks.Foreach(failing(str(notes), error)).open("p") as sink:
            dead_letters = DeadLetterBatch([], limit=5, fetch_records=originals, send=sent.extend)
            sink.write_with_dead_letters(batch(1, 0, 3), frame(spark, numbered(0, 3)), dead_letters)

    write(ValueError)
    assert [(letter.origin.offset, letter.error.partition(" (")[0]) for letter in sent] == [
        (1, "ValueError: no such address")
    ]
    assert sorted(noted(notes)) == [(0, "row 0"), (2, "row 2")]
    with pytest.raises(RetriableError):
        write(RetriableError)  # which asks for a repeat
    assert len(sent) == 1


@pytest.mark.parametrize("per", ["row", "partition"])
def test_a_row_with_a_value_that_python_has_none_for_is_put_aside(per, notes, spark):
    note, sent = noting(str(notes)), []

    def every(rows):
        for row in rows:
            note(row)

    def originals(refused):
        return [DeadLetter(r.origin, None, None, None, (), r.error, r.place) for r in refused]

    rows = frame(spark, numbered(0, 3)).selectExpr(
        "id", "text", "IF(id = 1, DATE'+10000-01-01', DATE'2024-02-29') AS day", "_kafka"
    )
    with sinks.Foreach(note if per == "row" else every, per=per).open("p") as sink:
        sink.write_with_dead_letters(
            batch(1, 0, 3), rows, DeadLetterBatch([], limit=5, fetch_records=originals, send=sent.extend)
        )
    assert [letter.origin.offset for letter in sent] == [1]
    assert sorted(noted(notes)) == [(0, "row 0"), (2, "row 2")]


@pytest.mark.parametrize("kind", [BadRecord, ConfigError, RetriableError])
def test_an_error_of_a_class_made_of_ours_is_reported_as_ours(kind, spark):
    class Mine(kind):
        def __init__(self):
            Exception.__init__(self, "mine")

    def effect(rows):
        raise Mine

    with sinks.Foreach(effect, per="partition").open("p") as sink, pytest.raises(kind, match="mine"):
        sink.write(batch(1, 0, 1), frame(spark, numbered(0, 1)))


def test_an_error_is_reported_though_close_fails_after_it(notes, spark):
    note = failing(str(notes), BadRecord)

    def close(_):
        raise ValueError("close failed")

    def write(count):
        with sinks.Foreach(lambda row, _: note(row), open=lambda: None, close=close).open("p") as sink:
            sink.write(batch(1, 0, count), frame(spark, numbered(0, count)).coalesce(1))

    with pytest.raises(BadRecord, match="no such address"):
        write(2)
    with pytest.raises(RetriableError, match="close failed"):
        write(1)


def test_rows_of_one_record_are_distinguished_by_their_number_or_by_a_key(topic, notes, spark, tmp_path):
    where = topic(partitions=2)
    where.produce([{"id": n} for n in range(20)])
    source = hr.Kafka(where.bootstrap, topics=[where.name], format=hr.Json("id BIGINT"))
    halves = partial(_halves, again=0)
    name, marks = f"p-{uuid.uuid4().hex[:8]}", stores.SQLite(tmp_path / "marks.db")

    def run(number, transform, **more):
        sink = sinks.Foreach(noting(str(notes)), once=marks, **more)
        offsets = stores.SQLite(tmp_path / f"offsets-{number}.db")  # others each time: everything is read again
        made = hr.Pipeline(
            name=name, source=source, sink=sink, guarantee="at-least-once", transform=transform, offsets=offsets
        )
        made.run(until="caught-up", session=spark, fail_fast=True)

    run(1, halves)
    run(2, halves)
    assert sorted(noted(notes)) == sorted((n, text) for n in range(20) for text in ("a", "b"))
    with pytest.raises(ConfigError, match="several rows come from one record"):
        run(3, partial(_halves, again=5))
    notes.unlink()
    run(4, partial(_halves, again=5), key=("id", "text"))
    run(5, partial(_halves, again=3), key=("id", "text"))
    assert sorted(noted(notes)) == sorted((n, text) for n in range(20) for text in ("a", "b"))


def _halves(rows, again):
    made = rows.selectExpr("id", "explode(array('a', 'b')) AS text", "_kafka")
    return made.repartition(again) if again else made


def test_a_function_gets_dicts_and_what_was_opened_which_is_closed_whatever_happens(tmp_path, spark):
    log = str(tmp_path / "log")

    def say(*words):
        with Path(log).open("a") as out:
            print(*words, file=out)

    def opened():
        say("open")
        return "resource"

    def effect(row, resource):
        say(row["id"], row["map"], row["_kafka"]["offset"], resource)
        if row["id"] == 1:
            raise ValueError

    def whole(rows, resource):
        say(sorted(row["id"] for row in rows), resource)

    rows = frame(spark, numbered(0, 2)).coalesce(1).selectExpr("id", "map('k', id) AS map", "_kafka")
    sink = sinks.Foreach(effect, open=opened, close=lambda it: say("close", it))
    with pytest.raises(RetriableError):
        sink.write(batch(1, 0, 2), rows)
    sinks.Foreach(whole, open=opened, close=lambda it: say("close", it), per="partition").write(batch(1, 0, 2), rows)
    each = ["open", "0 {'k': 0} 0 resource", "1 {'k': 1} 1 resource", "close resource"]
    assert Path(log).read_text().splitlines() == [*each, "open", "[0, 1] resource", "close resource"]


def test_a_function_that_cannot_travel_is_refused_before_anything_is_read():
    lock = threading.Lock()
    with pytest.raises(ConfigError, match=r"cannot be sent to the executors.*lock"):
        sinks.Foreach(lambda row: lock.acquire()).open("p")


def test_exactly_once_is_refused_with_the_reason():
    source = hr.Kafka("localhost:9092", topics=["t"])
    sink = sinks.Foreach(print, once=stores.Redis("redis://localhost"))
    with pytest.raises(UnsupportedGuarantee, match="a crash between an effect and its mark"):
        hr.Pipeline(name="mail", source=source, sink=sink, guarantee="exactly-once")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fn": "send"}, "expected a function as fn="),
        ({"close": print}, "close= needs open="),
        ({"per": "batch"}, "per: expected one of row, partition"),
        ({"once": stores.Memory()}, "expected a store of marks"),
        ({"key": "id"}, "need once="),
        ({"once": stores.Redis("redis://h"), "per": "partition"}, "single rows cannot be tracked"),
        ({"once": stores.Redis("redis://h"), "mark": "during"}, "mark: expected one of after, before"),
        ({"once": stores.Redis("redis://h"), "keep": 0}, "keep: expected a number of seconds above 0"),
    ],
)
def test_what_cannot_work_is_reported_when_the_sink_is_made(arguments, message):
    with pytest.raises(ConfigError, match=message):
        sinks.Foreach(**{"fn": print, **arguments})


APP = """
import http.client, json
import headrace as hr
from headrace import sinks, stores

HOST = {host!r}

def connect():
    return http.client.HTTPConnection(HOST, timeout=10)

def post(row, connection):
    connection.request("POST", "/mail", body=json.dumps(row["id"]))
    answer = connection.getresponse()
    answer.read()
    if answer.status != 200:
        raise RuntimeError(f"the server said {{answer.status}}")

mails = hr.Pipeline(
    name="mails",
    source=hr.Kafka({bootstrap!r}, topics=[{topic!r}], format=hr.Json("id BIGINT")),
    sink=sinks.Foreach(post, open=connect, close=lambda it: it.close(), once=stores.Redis({url!r})),
    guarantee="at-least-once",
    offsets=stores.SQLite({offsets!r}),
)
"""


@pytest.fixture
def mailbox():
    """A real HTTP server, which fails once in a while."""
    posted, refused = [], []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            number = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            fails = number in (7, 23) and number not in refused
            (refused if fails else posted).append(number)
            self.send_response(503 if fails else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            """Not on the terminal."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}", posted, refused
    server.shutdown()
    thread.join()
    server.server_close()


def test_every_record_of_an_app_file_is_posted_once_though_the_service_fails_in_between(
    mailbox, topic, redis, tmp_path
):
    host, posted, refused = mailbox
    where = topic(partitions=2)
    where.produce([{"id": n} for n in range(40)])
    app = tmp_path / "app.py"
    places = {"url": redis.url, "offsets": str(tmp_path / "offsets.db")}
    app.write_text(APP.format(host=host, bootstrap=where.bootstrap, topic=where.name, **places))
    with HeadraceProcess("run", f"{app}:mails", "--until", "caught-up", cwd=tmp_path) as run:
        done = run.finish()
    assert done.code == 0, done.err
    assert sorted(refused) == [7, 23], "the batch was repeated"
    assert sorted(posted) == list(range(40))
