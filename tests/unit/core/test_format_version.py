"""The version in what is stored."""

import pytest

from headrace.core.format_version import read_version, refuse_newer
from headrace.errors import ConfigError


@pytest.mark.parametrize(("raw", "version"), [({}, 1), ({"format": 1}, 1), ({"format": 2}, 2)])
def test_the_version_is_taken_out_of_what_was_stored(raw, version):
    raw["offset"] = 7
    assert read_version(raw, 2, "the state") == version
    assert raw == {"offset": 7}


@pytest.mark.parametrize("found", [3, 4, 10**9])
def test_a_newer_format_is_refused_with_the_cure(found):
    with pytest.raises(ConfigError, match=f"stored in format {found}: expected at most format 2") as refused:
        refuse_newer(found, 2, "the state")
    assert "pip install --upgrade headrace" in refused.value.hint


@pytest.mark.parametrize("found", ["2", None, 1.5, [1]])
def test_a_version_that_is_not_a_number_is_refused(found):
    with pytest.raises(ConfigError, match="expected a whole number as its format"):
        read_version({"format": found}, 2, "the state")
