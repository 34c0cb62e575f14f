"""The thread that starts Spark's JVM."""

import os
import signal
import time

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


def test_signals_for_the_driver_or_for_its_whole_group_do_not_end_the_jvm(tmp_path):
    """SIGTERM and Ctrl-C are for the driver, which finishes its batch with the JVM."""
    process = gateway._spawn(["/bin/sh", "-c", f"touch {tmp_path}/begun; read line"], dict(os.environ), [])
    deadline = time.monotonic() + 30
    while not (tmp_path / "begun").exists():
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert os.getsid(process.pid) == process.pid != os.getsid(0)
    for number in (signal.SIGTERM, signal.SIGINT):
        os.killpg(process.pid, number)
    process.stdin.write(b"go on\n")
    process.stdin.close()
    assert process.wait(30) == 0


def test_what_the_jvm_says_reaches_the_terminal_without_control_characters():
    reading, writing = os.pipe()
    before = os.dup(2)
    os.dup2(writing, 2)
    os.close(writing)
    try:
        said = r"printf 'one \033[31m red \007\r\ntwo \302\233 \377\tend\n\rthree' >&2"
        process = gateway._spawn(["/bin/sh", "-c", said], dict(os.environ), [])
    finally:
        os.dup2(before, 2)
        os.close(before)
    process.stdin.close()
    with os.fdopen(reading, "rb") as lines:  # to the end: the thread closes its copy when the process is over
        shown = lines.read()
    assert shown == b"one \\x1b[31m red \\x07\ntwo \\x9b \\xff\tend\n\\rthree"
    assert process.wait(30) == 0


def test_a_jvm_that_is_ended_while_it_starts_prints_no_stack_trace():
    reading, writing = os.pipe()
    before = os.dup(2)
    os.dup2(writing, 2)
    os.close(writing)
    try:
        said = "trap 'echo Exception in thread >&2; kill $!; exit' HUP; sleep 60 & echo starting >&2; wait"
        process = gateway._spawn(["/bin/sh", "-c", said], dict(os.environ), [])
    finally:
        os.dup2(before, 2)
        os.close(before)
    with os.fdopen(reading, "rb") as lines:
        assert lines.readline() == b"starting\n"
        gateway._end(process)
        assert lines.read() == b""
    process.stdin.close()
