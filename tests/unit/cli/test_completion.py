"""What the shell completes is one plain word: bash inserts it as it is, and zsh evaluates it."""

from types import SimpleNamespace

import pytest

from headrace.cli import completion

HOSTILE = [
    "a;id", "a$(id)", "a\\$(id)", "a`id`", 'a\\";id;"', "a'b", "a b", "a\nb", "a\x1b[2J", "a&b", "a|b", "a>b", "a*",
    "a~(b)", "--yes", "-x", "", "a!b", "a#b",
]  # fmt: skip
PLAIN = ["clicks", "clicks-2", "team.clicks_eu", "clicks:eu@v1", "größe"]


@pytest.mark.parametrize("hostile", HOSTILE, ids=repr)
def test_a_group_that_is_no_plain_word_is_not_completed(hostile, monkeypatch):
    found = SimpleNamespace(valid=[SimpleNamespace(group_id=name) for name in (*PLAIN, hostile)])
    monkeypatch.setattr(
        "headrace.kafka.admin.Admin", lambda client, timeout: SimpleNamespace(list_groups=lambda: found)
    )
    context = SimpleNamespace(params={"bootstrap": "localhost:1"})
    assert completion.groups(context, "") == sorted(PLAIN)


@pytest.mark.parametrize("hostile", [name for name in HOSTILE if name and "/" not in name], ids=repr)
def test_a_file_whose_name_is_no_plain_word_is_not_completed(hostile, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in (hostile, "clicks", "of-users"):
        (tmp_path / f"{name}.toml").touch()
    assert completion.pipelines(None, "") == ["clicks.toml", "of-users.toml"]
    folder = f"{tmp_path}/"
    assert f"{folder}clicks.toml" in completion.pipelines(None, folder)
