"""The pages hold together: links, names, snippets, and the commands that they show."""

import ast
import inspect
import os
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import typer

import headrace
from headrace import dev, events, sinks, stores
from headrace.cli.main import app
from headrace.kafka.subscription import Subscription
from headrace.runtime.runner import Engine
from support.project import ROOT

PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/README.md")],
    key=str,
)
PAGES.remove(ROOT / "CHANGELOG.md")  # speaks of what was
MODULES = {"hr": headrace, "sinks": sinks, "stores": stores, "dev": dev, "events": events}
COMMANDS = typer.main.get_command(app)


def blocks(page, *languages):
    return re.findall(rf"^```(?:{'|'.join(languages)})\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page):
    titles = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def commands(page):
    """The words behind `headrace` of every command that a page shows."""
    for block in blocks(page, "sh", "console"):
        for line in block.replace("\\\n", " ").splitlines():
            for part in re.findall(r"(?:^|[$|>(] ?)headrace ([^|)]*)", line):
                yield shlex.split(part.partition(" #")[0].partition(" >")[0], posix=False)


def unknown(words):
    """The options of a command that it does not have, or the verb that is not there."""
    command = COMMANDS
    while words and hasattr(command, "commands"):
        if words[0] not in command.commands:
            return [] if words[0].startswith("-") else [words[0]]
        command, words = command.commands[words[0]], words[1:]
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    return [word for word in words if word.startswith("--") and word.partition("=")[0] not in known]


def parameters(function):
    return [name for name in inspect.signature(function).parameters if name != "self"]


def as_written(arguments):
    """The names in `rows, *, cached=…`."""
    names = (argument.partition("=")[0].strip() for argument in arguments.split(","))
    return [name for name in names if name not in ("", "*", "self")]


def test_methods_of_the_contracts_are_documented_with_the_parameters_that_they_have():
    (block,) = [block for block in blocks(ROOT / "docs/architecture.md", "text") if "class OffsetStore(" in block]
    written = []
    for found in re.split(r"^class ", block, flags=re.MULTILINE)[1:]:
        name = re.match(r"\w+", found)[0]
        others = {"Engine": Engine, "Subscription": Subscription}
        kind = others.get(name) or getattr(sinks if name in sinks.__all__ else stores, name)
        for method, arguments in re.findall(r"(\w+)\((self[^)]*)\)", found):
            written.append((f"{name}.{method}", as_written(arguments)))
            assert written[-1] == (f"{name}.{method}", parameters(getattr(kind, method)))
    assert len(written) > 10


def test_methods_of_a_sink_are_documented_with_the_parameters_that_they_have():
    page = (ROOT / "docs/write-a-sink.md").read_text()
    written = re.findall(r"^\| `(\w+)\(([^)]*)\)`", page, flags=re.MULTILINE)
    assert len(written) > 4
    for method, arguments in written:
        kind = sinks.Sink if hasattr(sinks.Sink, method) else sinks.IdempotentSink
        assert (method, as_written(arguments)) == (method, parameters(getattr(kind, method)))


@pytest.mark.parametrize("name", sorted(set(sinks.__all__) - {"without_metadata"}))
def test_every_sink_describes_a_write_with_the_parameters_of_the_contract(name):
    signature = inspect.signature(getattr(sinks, name).describe_write)
    assert signature.replace(return_annotation=None) == inspect.signature(sinks.Sink.describe_write).replace(
        return_annotation=None
    )


def first_cells(text):
    """The code in the first cell of each row of the tables, such as `create=False`."""
    return [
        code for row in re.findall(r"^\| (`.*?) \|", text, flags=re.MULTILINE) for code in re.findall(r"`([^`]+)`", row)
    ]


OPTION_PAGES = [page for page in PAGES if page.parent.name == "sinks" and "| option | meaning |" in page.read_text()]


@pytest.mark.parametrize("page", OPTION_PAGES, ids=lambda page: page.stem)
def test_options_of_a_sink_are_documented_with_their_defaults(page):
    """A default of None may stand for a value that the sink chooses: the page names that value."""
    kind = {name.lower(): name for name in sinks.__all__}[page.stem]
    real = {name: parameter.default for name, parameter in inspect.signature(getattr(sinks, kind)).parameters.items()}
    assert real.keys() - {code.partition("=")[0] for code in first_cells(page.read_text())} == set()
    tables = re.findall(r"^\| option \| meaning \|\n(?:\|.*\n)+", page.read_text(), flags=re.MULTILINE)
    written = [code.partition("=") for table in tables for code in first_cells(table)]
    defaults = {name: default for name, equals, default in written if equals and real.get(name) is not None}
    assert {name: () if text == "[]" else ast.literal_eval(text) for name, text in defaults.items()} == {
        name: real[name] for name in defaults
    }


@pytest.mark.parametrize("folder", ["core", "runtime", "engine", "kafka", "spark", "jars", "tools"])
def test_the_layout_names_modules_that_exist(folder):
    page = (ROOT / "docs/architecture.md").read_text()
    (entry,) = re.findall(rf"^  {folder}/ .*\n(?:    +.*\n)*", page, flags=re.MULTILINE)
    named = set(re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", entry))
    there = {path.stem for path in (ROOT / "src/headrace" / folder).iterdir()}
    assert named - there == set()


@pytest.fixture(params=PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def page(request):
    return request.param


def test_every_link_inside_the_repository_leads_somewhere(page):
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if link.startswith(("http:", "https:")):
            continue
        path, _, anchor = link.partition("#")
        target = Path(os.path.normpath(page.parent / path)) if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    assert dead == []


def test_every_public_name_exists(page):
    named = set(re.findall(rf"(?<![\w/.-])({'|'.join(MODULES)})\.(?!md\b|py\b)([A-Za-z]\w*)", page.read_text()))
    missing = [f"{module}.{name}" for module, name in named if not hasattr(MODULES[module], name)]
    assert missing == []


def test_toml_parses_and_python_compiles(page):
    for block in blocks(page, "toml"):
        tomllib.loads(block)
    for block in blocks(page, "python"):
        compile(block, str(page), "exec")


def test_commands_have_the_options_that_are_shown(page):
    wrong = {" ".join(words): found for words in commands(page) if (found := unknown(words))}
    assert wrong == {}


def test_the_readme_links_to_every_page():
    linked = set(re.findall(r"\]\(([^)#\s]+)", (ROOT / "README.md").read_text()))
    pages = {str(page.relative_to(ROOT)) for page in (*ROOT.glob("docs/*.md"), *ROOT.glob("*.md"))}
    assert pages - linked - {"README.md"} == set()
