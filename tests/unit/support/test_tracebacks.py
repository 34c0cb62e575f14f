"""Tracebacks that point into the user's code."""

from headrace.errors import RetriableError
from headrace.runtime.retry import retry_until_stopped
from headrace.support.retry import RetryPolicy
from headrace.support.tracebacks import in_user_code, short

WORKER = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/app/clicks.py", line 12, in shout
    return text.upper()
           ^^^^^^^^^^
AttributeError: 'NoneType' object has no attribute 'upper'

JVM stacktrace:
org.apache.spark.SparkException: Job aborted
"""


def users_function():
    raise ValueError("boom")


def raised(function):
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_the_users_frame_is_shown_with_file_line_and_function():
    text = in_user_code(raised(users_function))
    assert __file__ in text
    assert "in users_function" in text
    assert 'raise ValueError("boom")' in text


def test_frames_of_headrace_are_left_out():
    error = raised(lambda: retry_until_stopped(users_function, lambda _: False, print, policy=RetryPolicy()))
    assert isinstance(error, ValueError)
    assert "retry.py" not in in_user_code(error)


def test_the_error_of_a_worker_is_shown_by_its_own_last_line():
    assert short(RuntimeError(WORKER)) == "AttributeError: 'NoneType' object has no attribute 'upper'"


def test_an_error_is_shown_by_its_first_line():
    assert short(RetriableError("first\nsecond")) == "first"


def test_an_error_without_words_is_shown_by_its_name():
    assert short(KeyError()) == "KeyError"


def test_a_dotted_error_of_a_worker_is_recognised():
    text = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    g()\nmy.module.Broken: no\n'
    assert short(RuntimeError(text)) == "my.module.Broken: no"


def test_a_worker_error_without_a_message_is_shown_by_its_name():
    text = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    assert x\nAssertionError\n\nJVM'
    assert "AssertionError" in short(RuntimeError(text))


def test_a_line_of_source_with_a_colon_is_not_taken_for_the_error():
    text = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    else: g()\nValueError: bad\n'
    assert short(RuntimeError(text)) == "ValueError: bad"


REFUSED = """[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `pgae` cannot be resolved. Did you mean `page`?\
 SQLSTATE: 42703;{where}
'Project [user#0, page#1, 'upper('pgae) AS b#2]
+- LogicalRDD [user#0, page#1], false
"""


def test_an_analysis_error_of_spark_is_shown_without_the_plan():
    said = "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `pgae` cannot be resolved. Did you mean `page`?"
    assert short(Exception(REFUSED.format(where=""))) == said
    assert short(Exception(REFUSED.format(where=" line 2 pos 6;"))) == f"{said} line 2 pos 6"


def test_a_syntax_error_of_spark_is_shown_with_its_place():
    text = "\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEC'. SQLSTATE: 42601 (line 1, pos 0)\n\n== SQL ==\nSELEC"
    assert short(Exception(text)) == "[PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEC'. (line 1, pos 0)"


def test_of_an_error_in_java_the_last_cause_is_reported():
    text = """An error occurred while calling o125.parquet.
: org.apache.spark.SparkException: [JOB_ABORTED] Job aborted.
\tat org.apache.spark.Somewhere.run(Somewhere.scala:7)
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.write(FileOutputStream.java:1)
\t... 3 more
"""
    assert short(Exception(text)) == "IOException: No space left on device"
    assert short(Exception("An error occurred while calling o1.x.")) == "An error occurred while calling o1.x."
