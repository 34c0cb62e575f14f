"""The console sink."""

from headrace import sinks
from headrace.testing.sinks import batch, frame, numbered


def test_the_console_shows_the_first_rows_of_each_batch(spark, capsys):
    with sinks.Console(limit=2).open("clicks") as sink:
        sink.write(batch(1, 0, 5), frame(spark, numbered(0, 5)))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "batch 1: 2 rows shown"
    assert len(lines) == 3
    assert "text='row 0'" in lines[1]
    assert "_kafka" not in lines[1]
