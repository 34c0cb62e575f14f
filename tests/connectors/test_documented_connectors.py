"""The sink and the store of the documentation, held to the suites that the pages show."""

import re

from support.project import ROOT

DOCS = ROOT / "docs"


def code_of(page):
    return "\n\n".join(re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL))


# The classes named Test… in the pages are collected by pytest as if they stood here.
exec(compile(code_of("write-a-sink.md"), "docs/write-a-sink.md", "exec"))
exec(compile(code_of("write-a-store.md"), "docs/write-a-store.md", "exec"))


def test_the_pages_hold_the_suites_they_promise():
    assert {"TestJsonFiles", "TestFiles", "prove"} <= set(globals())
