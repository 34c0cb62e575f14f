"""The tables of docs/architecture.md about threads and process-wide state name what the code has, and nothing else."""

import ast
import re

import pytest

from support.project import ROOT

SOURCE = ROOT / "src" / "headrace"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
OF_A_RUN = ("runtime", "engine", "connectors", "kafka", "formats", "spark")
STARTERS = {"Thread", "Timer", "ThreadPoolExecutor"}
MUTABLE = {"set", "dict", "list", "ContextVar", "Lock", "RLock", "Condition", "Event", "local", "defaultdict", "deque"}
CACHES = {"cache", "lru_cache"}


def modules(*packages):
    for path in sorted(SOURCE.rglob("*.py")):
        module = path.relative_to(SOURCE).with_suffix("").as_posix()
        if not packages or module.partition("/")[0] in packages:
            yield module, ast.parse(path.read_text(encoding="utf-8"))


def section(heading):
    found = re.search(rf"^## {heading}\n(.*?)^## ", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"the page has no section {heading}"
    return found[1]


def first_cells(heading):
    rows = [line.split("|")[1] for line in section(heading).splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def name_of(call):
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def thread_names():
    for module, tree in modules(*OF_A_RUN):
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and name_of(call) in STARTERS:
                named = [word.value for word in call.keywords if word.arg in ("name", "thread_name_prefix")]
                assert named, f"{module}, line {call.lineno}: the thread has no name"
                first = named[0].values[0] if isinstance(named[0], ast.JoinedStr) else named[0]
                yield first.value


def process_state():
    for module, tree in modules():
        if module.partition("/")[0] in ("testing", "demo", "cli"):
            continue
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                decorators = {
                    name_of(d) if isinstance(d, ast.Call) else getattr(d, "id", "") for d in node.decorator_list
                }
                if decorators & CACHES:
                    yield f"{module}.{node.name}"
            elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                value = node.value
                empty = isinstance(value, ast.Dict | ast.List) and not (
                    getattr(value, "keys", None) or getattr(value, "elts", None)
                )
                made = isinstance(value, ast.Call) and name_of(value) in MUTABLE
                if empty or made:
                    yield f"{module}.{target.id}"


def test_each_thread_of_a_run_is_in_the_table():
    documented = {name.removesuffix("NAME") for name in first_cells("Threads of a run")}
    assert set(thread_names()) == documented


def test_each_thread_has_a_prefix_that_tells_whose_it_is():
    assert all(name.startswith("headrace-") for name in thread_names())


def test_each_mutable_name_of_a_module_is_in_the_table():
    documented = {name for name in first_cells("State of the process") if "/" in name}
    assert set(process_state()) == documented


@pytest.mark.parametrize("heading", ["Threads of a run", "State of the process"])
def test_the_modules_that_the_tables_name_exist(heading):
    named = re.findall(r"`([a-z_]+(?:/[a-z_]+)+)\.(?:py|[A-Za-z_]+)`", section(heading))
    assert named
    assert [module for module in named if not (SOURCE / f"{module}.py").is_file()] == []
