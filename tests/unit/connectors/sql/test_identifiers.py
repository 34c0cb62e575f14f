"""Names, quoted for SQL databases."""

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.connectors.sql.identifiers import qualified, quoted, quoted_list


@pytest.mark.parametrize(
    ("make", "given_", "sql"),
    [
        (quoted, "user", '"user"'),
        (quoted, 'a"b', '"a""b"'),
        (quoted, "a.b", '"a.b"'),
        (quoted_list, [], ""),
        (quoted_list, ["a", 'b"'], '"a", "b"""'),
        (qualified, "rows", '"rows"'),
        (qualified, "app.rows", '"app"."rows"'),
    ],
)
def test_a_name_is_quoted(make, given_, sql):
    assert make(given_) == sql


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20))
def test_a_quoted_name_is_one_name_to_a_database(name):
    connection = sqlite3.connect(":memory:")
    try:
        (column,) = connection.execute(f"SELECT 1 AS {quoted(name)}").description
    finally:
        connection.close()
    assert column[0] == name
