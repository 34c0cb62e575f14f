import pytest

import headrace as hr
from headrace.errors import ConfigError

NEVER_NULL = {"user IS NOT NULL": 0.99}


def test_it_is_a_transform_by_itself():
    assert hr.expect(NEVER_NULL)("rows") == "rows"


def test_it_goes_around_a_transform_given_to_it_or_under_it():
    @hr.expect(NEVER_NULL)
    def doubled(rows):
        return rows * 2

    for made in (doubled, hr.expect(NEVER_NULL, lambda rows: rows * 2)):
        assert made("ab") == "abab"
        assert made.conditions == NEVER_NULL


def test_one_around_another_asks_both_and_the_stricter_share_counts():
    inner = hr.expect({"a": 0.9, "b": 0.5}, lambda rows: rows * 2)
    for made in (hr.expect({"a": 0.5, "c": 1}, inner), hr.expect({"a": 0.5, "c": 1})(inner)):
        assert made.conditions == {"a": 0.9, "b": 0.5, "c": 1}
        assert made("ab") == "abab"


@pytest.mark.parametrize(
    "conditions", [{}, None, "user IS NOT NULL", {"": 1}, {"a": 0}, {"a": 1.5}, {"a": "most"}, {"a": True}, {7: 0.5}]
)
def test_what_is_not_a_condition_with_a_share_is_refused(conditions):
    with pytest.raises(ConfigError):
        hr.expect(conditions)


def test_what_is_not_a_function_is_refused():
    with pytest.raises(ConfigError, match="not a function"):
        hr.expect(NEVER_NULL, "SELECT 1")
