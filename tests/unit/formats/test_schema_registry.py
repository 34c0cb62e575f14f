"""The client of schema registries against servers that mean harm: redirects, endless answers, nested ones, many ids."""

import io
import json
import socket
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import headrace as hr
from headrace.errors import ConfigError, RetriableError
from headrace.formats import registry_http
from headrace.formats.avro import decoding
from headrace.formats.avro import schema as avro_schema
from headrace.formats.avro.decoding import RegistryAvro
from headrace.formats.schema_registry import RegisteredSchema, SchemaRegistry, TooLarge

SCHEMA = json.dumps({"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]})
DEEP = 100_000


@contextmanager
def serving(answer):
    """A server whose handler is given to `answer`; what it was asked is in `asked`, path and Authorization."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            made.asked.append((self.path, self.headers["Authorization"]))
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            answer(self)

        do_POST = do_GET

        def log_message(self, *_):
            """Nothing."""

    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.asked, made.daemon_threads = [], True
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield made
    finally:
        made.shutdown()
        thread.join()
        made.server_close()


def sending(body, status=200, **headers):
    def answer(handler):
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


FOUND = sending(json.dumps({"schema": SCHEMA}).encode())


def url(server, user="user:secret@", scheme="http"):
    return f"{scheme}://{user}127.0.0.1:{server.server_port}"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_password_does_not_follow_a_redirect_to_another_server(status):
    with serving(FOUND) as other, serving(sending(b"", status, Location=f"{url(other, '')}/x")) as first:
        with pytest.raises(ConfigError, match="the password is for the first address only") as refused:
            SchemaRegistry(url(first)).get_schema(1)
        assert other.asked == []
        assert "secret" not in refused.value.message
        # Without a password there is nothing to give away.
        assert SchemaRegistry(url(first, "")).get_schema(1).schema == SCHEMA
        assert other.asked == [("/x", None)]


def test_a_password_does_not_follow_the_second_redirect_either():
    def answer(handler):
        near = handler.path.startswith("/schemas")
        sending(b"", 302, Location="/moved" if near else f"{url(other, '')}/x")(handler)

    with serving(FOUND) as other, serving(answer) as first:
        with pytest.raises(ConfigError, match="the password is for the first address only"):
            SchemaRegistry(url(first)).get_schema(1)
        assert [path for path, _ in first.asked] == ["/schemas/ids/1", "/moved"]
        assert other.asked == []


def test_what_a_registry_sends_beside_a_redirect_is_not_read():
    sent = []

    def answer(handler):
        if handler.path == "/moved":
            FOUND(handler)
            return
        try:
            sending(b"", 302, Location="/moved")(handler)
            while len(sent) < 1_000:
                handler.wfile.write(b"x" * 100_000)
                sent.append(1)
        except OSError:
            """The client has gone."""

    with serving(answer) as server:
        assert SchemaRegistry(url(server)).get_schema(1).schema == SCHEMA
    assert len(sent) < 1_000


@pytest.mark.parametrize("to", ["http://h:99999/x", "http://h:x/", "http://[::1/x"])
def test_a_redirect_to_what_is_no_address_is_a_config_error(to):
    with (
        serving(sending(b"", 302, Location=to)) as server,
        pytest.raises(ConfigError, match="did not return a schema registry response"),
    ):
        SchemaRegistry(url(server)).get_schema(1)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b'{"schema": "x", "id": Infinity}'),
        (200, b'{"schema": "x", "references": [{"subject": "a", "version": 1e999}]}'),
        (404, b'{"error_code": [1], "message": "x"}'),
        (404, b'{"error_code": {"a": 1}, "message": "x"}'),
    ],
)
def test_an_answer_that_only_looks_like_a_registrys_is_a_config_error(status, body):
    with serving(sending(body, status)) as server, pytest.raises(ConfigError):
        SchemaRegistry(url(server)).get_schema(1)


def test_a_redirect_on_the_same_server_keeps_the_password():
    def answer(handler):
        (FOUND if handler.path.startswith("/moved") else sending(b"", 302, Location="/moved"))(handler)

    with serving(answer) as server:
        assert SchemaRegistry(url(server)).get_schema(1).schema == SCHEMA
        assert [path for path, _ in server.asked] == ["/schemas/ids/1", "/moved"]
        assert len({user for _, user in server.asked} - {None}) == 1


@pytest.mark.parametrize("to", ["http://example.com/", "ftp://example.com/x"])
def test_a_redirect_from_tls_to_plain_text_or_to_another_protocol_is_not_followed(to):
    request = registry_http.build_request("https://registry.example.com", "/x", None)
    with pytest.raises(ConfigError, match="not encrypted"):
        registry_http.SafeRedirects().redirect_request(request, io.BytesIO(), 302, "Found", {}, to)


def test_little_is_shown_of_where_a_redirect_leads():
    request = registry_http.build_request("https://registry.example.com", "/x", None)
    with pytest.raises(ConfigError) as refused:
        registry_http.SafeRedirects().redirect_request(
            request, io.BytesIO(), 302, "Found", {}, "http://" + "a" * 60_000
        )
    assert len(refused.value.message) < 1_000


@pytest.mark.parametrize("status", [200, 500])
def test_an_endless_answer_is_cut_off(status, monkeypatch):
    monkeypatch.setattr(registry_http, "MAX_BYTES", 100_000)
    sent = []

    def endless(handler):
        handler.send_response(status)
        handler.end_headers()
        try:
            while len(sent) < 100_000:
                handler.wfile.write(b"x" * 10_000)
                sent.append(1)
        except OSError:
            """The client has gone."""

    with serving(endless) as server, pytest.raises(ConfigError, match="more than 100,000 bytes"):
        SchemaRegistry(url(server)).get_schema(1)
    assert len(sent) < 100_000


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "headrace-registry"]


def sockets():
    return [link for link in Path("/proc/self/fd").iterdir() if _is_socket(link)]


def _is_socket(link):
    try:
        return link.readlink().name.startswith("socket:")
    except OSError:
        return False


@pytest.mark.parametrize("part", ["body", "headers"])
def test_an_answer_that_drips_has_a_deadline_as_a_whole(part, monkeypatch):
    monkeypatch.setattr(registry_http, "DEADLINE", 0.5)
    over, gone = threading.Event(), threading.Event()

    def dripping(handler):
        if part == "body":
            handler.send_response(200)
            handler.end_headers()
        else:
            handler.wfile.write(b"HTTP/1.0 200 OK\r\nX: ")
        try:
            while not over.wait(0.02):
                handler.wfile.write(b" ")
        except OSError:
            gone.set()

    with serving(dripping) as server:
        before = len(sockets()) if Path("/proc/self/fd").exists() else None
        try:
            with pytest.raises(RetriableError, match=r"no complete response in 0\.5 s"):
                SchemaRegistry(url(server)).get_schema(1)
            assert gone.wait(20), "the connection is closed at the deadline"
            assert wait_until(lambda: not threads()), "and nobody is left behind who reads from it"
            assert before is None or wait_until(lambda: len(sockets()) <= before)
        finally:
            over.set()


def test_a_greeting_of_tls_that_drips_leaves_nobody_behind(monkeypatch):
    monkeypatch.setattr(registry_http, "DEADLINE", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(RetriableError, match="no complete response"):
            SchemaRegistry(f"https://127.0.0.1:{silent.getsockname()[1]}").get_schema(1)
        assert wait_until(lambda: not threads())


def wait_until(holds, seconds=20.0):
    """Whether it holds before the time is over."""
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.01)
    return holds()


@pytest.mark.parametrize("status", [200, 404, 500])
def test_an_answer_that_is_nested_too_deeply_is_no_recursion_error(status):
    with serving(sending(b"[" * DEEP, status)) as server, pytest.raises((ConfigError, RetriableError)):
        SchemaRegistry(url(server)).get_schema(1)


@pytest.mark.parametrize("text", ["[" * DEEP, '{"type": "array", "items": ' * DEEP, '{"type":[' * 150])
def test_a_schema_that_is_nested_too_deeply_is_refused(text):
    with pytest.raises(ConfigError, match="nested more than 200 levels"):
        hr.Avro(text)


def test_brackets_in_texts_of_a_schema_do_not_count():
    doc = {"type": "record", "name": "R", "doc": '\\"' + "[{" * 500, "fields": [{"name": "id", "type": "int"}]}
    hr.Avro(json.dumps(doc))


def doubling(times, namespace=""):
    """Each record has two fields of the type of the one before: a row of it has 2 ** times values."""
    found = {"type": "record", "name": "R0", "fields": [{"name": "x", "type": "int"}]}
    for number in range(1, times + 1):
        before = {"name": "b", "type": ["null", {"type": "array", "items": f"{namespace}R{number - 1}"}]}
        found = {"type": "record", "name": f"R{number}", "fields": [{"name": "a", "type": found}, before]}
    return {**found, "namespace": namespace.rstrip(".")} if namespace else found


@pytest.mark.parametrize("namespace", ["", "com.example."])
def test_a_schema_of_few_lines_and_endless_fields_is_refused(namespace):
    avro_schema.refuse_large(json.dumps(doubling(10, namespace)))
    for times in (12, 60):
        with pytest.raises(ConfigError, match="more than 10,000: "):
            avro_schema.refuse_large(json.dumps(doubling(times, namespace)))


def test_a_flat_schema_whose_fields_are_beyond_counting_is_refused():
    """The number of its fields has thousands of digits, more than Python writes."""
    records = [{"type": "record", "name": "R0", "fields": [{"name": "x", "type": "int"}]}]
    for number in range(1, 20_000):
        twice = [{"name": name, "type": f"R{number - 1}"} for name in "ab"]
        records.append({"type": "record", "name": f"R{number}", "fields": twice})
    fields = [{"name": f"f{number}", "type": one} for number, one in enumerate(records)]
    text = json.dumps({"type": "record", "name": "O", "fields": fields})
    avro_schema.refuse_deep(text)
    with pytest.raises(ConfigError, match="more than 10,000: "):
        avro_schema.refuse_large(text)


@pytest.mark.parametrize("text", ['\\"', '"', '"\\'])
@pytest.mark.timeout(60)
def test_brackets_are_counted_in_time_that_is_linear_in_the_text(text):
    """What takes ten seconds for 40 KB if it is quadratic takes hours for this."""
    avro_schema.refuse_deep(text * (1_000_000 // len(text)))


def test_a_large_schema_and_one_within_itself_are_not_refused():
    fields = [{"name": f"f{n}", "type": {"type": "string"}} for n in range(4_000)]
    large = {"type": "record", "name": "R", "fields": fields}
    avro_schema.refuse_large(json.dumps(large))
    within = ["null", "T", {"type": "map", "values": "T"}]
    tree = {"type": "record", "name": "T", "fields": [{"name": "next", "type": within}]}
    avro_schema.refuse_large(json.dumps(tree))


@pytest.fixture
def reading(monkeypatch):
    """What reads by a registry that has the ids below 10, without a Spark; and the ids that were asked for."""
    asked = []

    def get_schema(self, number):
        asked.append(number)
        return RegisteredSchema(number, SCHEMA) if number < 10 else None

    monkeypatch.setattr(SchemaRegistry, "get_schema", get_schema)
    monkeypatch.setattr(SchemaRegistry, "get_subjects", lambda self, number: [])
    made = RegistryAvro.__new__(RegistryAvro)
    made._registry, made._part, made._clock, made._subjects = SchemaRegistry("http://r"), "value", lambda: 0.0, set()
    made._known, made._missing, made._too_many, made._reader = {}, {}, False, SCHEMA
    made.decoder_id, made._kind, made.single = "token", {"type": "struct", "fields": []}, False
    made._resolve = lambda found: found.schema
    made._add = lambda number, schema, own_subject: made._known.__setitem__(number, decoding._WriterSchema(schema))
    return made, asked


def test_each_unknown_id_is_asked_for_once_and_not_more_than_a_hundred_in_a_batch(reading):
    made, asked = reading
    flood = {number: ["t"] for number in (5, *range(1_000, 101_000))}
    told = made.fetch_schemas(flood)
    assert asked[0] == 5, "the one that most records name comes first"
    assert len(asked) == 100
    assert "99,901" in told.replace("the other ", "")
    sql = made.decode_expr("value") + made.error_expr("value", "decoded_value")
    assert len(sql) < 20_000
    assert "raise_error" not in made.decode_expr("value"), "the records that name the others are bad"
    assert "was not requested" in made.error_expr("value", "decoded_value")

    made.start_batch()
    assert "raise_error" in made.decode_expr("value"), "the next batch may ask again"
    made.fetch_schemas({number: ["t"] for number in range(1_000, 1_150)})
    assert len(asked) == len(set(asked)), "and not for the same"


def test_the_unknown_ids_of_many_batches_do_not_pile_up(reading):
    made, asked = reading
    for batch in range(1_000, 6_000, 100):
        made.start_batch()
        made.fetch_schemas({number: ["t"] for number in range(batch, batch + 100)})
        assert set(range(batch, batch + 100)) <= set(made._missing), "none of the batch in hand is forgotten"
        assert len(made._missing) <= 1_100
    assert len(asked) == 5_000
    assert len(made.decode_expr("value")) < 30_000


def test_schemas_that_cannot_be_read_do_not_pile_up_and_say_why_in_short(reading, monkeypatch):
    made, asked = reading
    monkeypatch.setattr(SchemaRegistry, "get_schema", lambda self, number: RegisteredSchema(number, SCHEMA))

    def refuse(found):
        asked.append(found.id)
        raise ConfigError("missing enum symbols: " + "x" * 100_000)

    made._resolve = refuse
    for batch in range(1_000, 6_000, 100):
        made.start_batch()
        told = made.fetch_schemas({number: ["t"] for number in range(batch, batch + 100)})
        assert len(told) < 5_000
        assert set(range(batch, batch + 100)) <= set(made._known), "none of the batch in hand is forgotten"
        assert len(made._known) <= 1_000
    assert len(asked) == 5_000
    assert len(made.error_expr("value", "decoded_value")) < 1_000_000


def test_a_schema_that_cannot_be_used_makes_bad_records_and_does_not_stop_a_run(reading):
    made, _ = reading

    def refuse(found):
        raise ConfigError("this Avro schema is nested more than 200 levels deep")

    made._resolve = refuse
    made.fetch_schemas({5: ["t"]})
    assert "schema id 5 cannot be read: this Avro schema is nested" in made.error_expr("value", "decoded_value")
    assert "raise_error" not in made.decode_expr("value").partition("substring")[0]


@pytest.mark.parametrize("number", [2**31, 2**32 - 1])
def test_an_id_that_no_registry_can_have_is_absent_without_a_question(number):
    with serving(sending(b'{"error_code": 404, "message": "HTTP 404 Not Found"}', 404)) as server:
        assert SchemaRegistry(url(server)).get_schema(number) is None
        assert server.asked == []


@pytest.mark.parametrize("body", [b'{"error_code": 404, "message": "HTTP 404 Not Found"}', b"<html>", b""])
def test_a_404_for_an_id_says_that_it_is_absent_in_whatever_words_if_a_registry_answers(body):
    def answer(handler):
        known = handler.path.startswith("/subjects/")
        sending(b'{"error_code": 40401, "message": "no such subject"}' if known else body, 404)(handler)

    with serving(answer) as server:
        assert SchemaRegistry(url(server)).get_schema(7) is None
        assert SchemaRegistry(url(server)).get_subjects(7) == []
    with serving(sending(body, 404)) as proxy, pytest.raises(ConfigError, match="404"):
        SchemaRegistry(url(proxy)).get_schema(7)


def test_an_answer_that_is_too_large_for_one_id_makes_bad_records_of_that_id_alone(reading, monkeypatch):
    made, _ = reading

    def get_schema(self, number):
        if number == 6:
            raise TooLarge("the registry answers with more than 10,000,000 bytes about schema id 6")
        return RegisteredSchema(number, SCHEMA)

    monkeypatch.setattr(SchemaRegistry, "get_schema", get_schema)
    assert "cannot be read" in made.fetch_schemas({6: ["t"], 5: ["t"]})
    assert made._known[5].misfit is None
    assert "schema id 6 cannot be read: the registry answers with more" in made.error_expr("value", "decoded_value")
    assert "X'0000000006'" not in made.decode_expr("value").partition("ELSE")[0].partition("IS NULL")[0]


def test_schemas_that_refer_to_each_other_without_end_are_refused(reading, monkeypatch):
    made, _ = reading
    monkeypatch.setattr(
        SchemaRegistry,
        "get_version",
        lambda self, subject, number: RegisteredSchema(1, "{}", "AVRO", ((subject, number + 1),)),
    )
    with pytest.raises(ConfigError, match="refers to more than 200 others"):
        made._fetch_references(RegisteredSchema(1, "{}", "AVRO", (("s", 1),)), {}, set())
    monkeypatch.setattr(
        SchemaRegistry,
        "get_version",
        lambda self, subject, number: RegisteredSchema(1, "{}", "AVRO", (("s", 1),)),
    )
    assert list(made._fetch_references(RegisteredSchema(1, "{}", "AVRO", (("s", 1),)), {}, set())) == [("s", 1)]


# schemas that are tried

NO_SUBJECT = sending(b'{"error_code": 40401, "message": "Subject not found"}', 404)
OTHER = sending(b'{"error_code": 40403, "message": "Schema not found"}', 404)
NO_PATH = sending(b"no such page", 404)
FITS, UNFIT = sending(b'{"is_compatible": true}'), sending(b'{"is_compatible": false, "messages": ["id: was int"]}')
TRIED = "/compatibility/subjects/clicks-value/versions/latest?verbose=true"


@pytest.mark.parametrize(
    ("looked_up", "compared", "asked"),
    [
        (FOUND, UNFIT, ["/subjects/clicks-value"]),
        (NO_SUBJECT, NO_SUBJECT, ["/subjects/clicks-value", TRIED]),
        (OTHER, FITS, ["/subjects/clicks-value", TRIED]),
        (OTHER, NO_PATH, ["/subjects/clicks-value", TRIED]),
    ],
    ids=["there already", "a new subject", "the next version", "a registry that cannot tell"],
)
def test_a_schema_that_could_be_registered_is_not(looked_up, compared, asked):
    with serving(lambda handler: (compared if "compat" in handler.path else looked_up)(handler)) as server:
        body = hr.Avro(SCHEMA, registry=url(server, "")).dry_run_encode_expr({"id": "integer"}, "clicks")
        assert [path for path, _ in server.asked] == asked
    assert body.startswith("to_avro(")


def test_a_schema_that_the_registry_would_refuse_is_refused_as_there():
    message = r"rejects the schema for clicks-value as incompatible .* id: was int"
    with (
        serving(lambda handler: (UNFIT if "compat" in handler.path else OTHER)(handler)) as server,
        pytest.raises(ConfigError, match=message),
    ):
        hr.Avro(SCHEMA, registry=url(server, "")).dry_run_encode_expr({"id": "integer"}, "clicks")


def test_a_registry_without_a_schema_to_read_by_is_found_without_spark():
    with serving(NO_SUBJECT) as server:
        address = url(server, "")
        with pytest.raises(ConfigError, match="no reader schema; requested: clicks-key"):
            hr.Avro(registry=address).check("key", ["clicks"])
        hr.Avro(SCHEMA, registry=address).check("key", ["clicks"])
        assert [path for path, _ in server.asked] == ["/subjects/clicks-key/versions"] * 2
