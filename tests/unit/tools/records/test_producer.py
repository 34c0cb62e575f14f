"""The settings of a producer, where nobody says otherwise and where somebody does."""

import pytest

from headrace.tools.records.producer import ProducerSettings


@pytest.mark.parametrize(
    ("said", "acks", "idempotent"),
    [(None, "all", True), (None, "-1", True), (None, "1", False), ("all", "1", True), ("1", "all", False)],
)
def test_records_are_kept_in_order_and_free_of_duplicates_unless_fewer_acknowledge_them(said, acks, idempotent):
    """`said` by --acks counts more than `acks` of the options."""
    how = ProducerSettings(said)
    settings = {**how.defaults(acks, 1_000_000), "acks": acks, **how.required()}
    assert settings["acks"] == (said or acks)
    assert settings["enable.idempotence"] is idempotent
    assert "max.in.flight.requests.per.connection" not in settings  # the client holds it to what keeps the order
    assert "retries" not in settings  # as many as the time allows
