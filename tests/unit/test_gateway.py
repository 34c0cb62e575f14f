"""The thread that starts Spark's JVM."""

import os

from headrace.spark import gateway


def test_a_closed_stderr_does_not_end_the_jvm():
    """The kernel ends the JVM when the thread that started it ends."""
    reading, writing = os.pipe()
    os.close(reading)  # as of `headrace run … 2>&1 | head`, when head has ended
    before = os.dup(2)
    os.dup2(writing, 2)
    os.close(writing)
    try:
        process = gateway._spawn(["/bin/sh", "-c", "echo one >&2; sleep 0.5; echo two >&2"], dict(os.environ), [])
    finally:
        os.dup2(before, 2)
        os.close(before)
    process.stdin.close()
    assert process.wait(30) == 0
