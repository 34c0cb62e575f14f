"""Errors raised inside Spark, recognised on the driver by their text."""

import pytest

from headrace.core import error_markers as markers
from headrace.errors import RetriableError


@pytest.mark.parametrize(
    "text",
    [f"[USER_RAISED_EXCEPTION] {markers.BAD_RECORD} SQLSTATE: P0001", "[MALFORMED_RECORD_IN_PARSING.CANNOT_PARSE] ..."],
)
def test_a_bad_record_error_is_recognised(text: str) -> None:
    assert markers.is_bad_record_error(RuntimeError(text))
    assert not markers.is_bad_record_error(RuntimeError("something else"))


def test_the_unknown_schema_id_is_read_from_the_error() -> None:
    payload = '{"token":"t","id":7,"topic":"a"}'
    text = f"Job aborted: [USER_RAISED_EXCEPTION] {markers.UNKNOWN_SCHEMA}{payload} SQLSTATE: P0001"
    assert markers.unknown_schema(RuntimeError(text)) == {"token": "t", "id": 7, "topic": "a"}
    assert markers.unknown_schema(RuntimeError("Job aborted")) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"[USER_RAISED_EXCEPTION] {markers.UNENCODABLE}id: -1 is too small", "id: -1 is too small"),
        (
            "[AVRO_CANNOT_WRITE_NULL_FIELD] Cannot write null value for field id\n at x",
            "Cannot write null value for field id",
        ),
        ("java.lang.NullPointerException: null value for (non-nullable) int", "null value for (non-nullable) int"),
    ],
)
def test_the_reason_why_a_row_cannot_be_encoded_is_read_from_the_error(text: str, reason: str) -> None:
    assert markers.unencodable_reason(RuntimeError(text)) == reason


def test_an_exception_of_a_python_worker_is_recognised_by_its_full_name() -> None:
    traceback = "Traceback (most recent call last):\n  ...\nheadrace.errors.RetriableError: gone"
    assert markers.is_raised_on_worker(RuntimeError(traceback), RetriableError)
    assert not markers.is_raised_on_worker(RuntimeError("RetriableError: gone"), RetriableError)
