"""A SQL table against the columns of the rows: created, evolved or refused."""

import pytest

from headrace.connectors.sql.table_check import Column, TableSchemaCheck
from headrace.connectors.sql.upsert import OFFSET, ORIGIN, WriteMode
from headrace.errors import ConfigError

GUARDS = {ORIGIN: "TEXT", OFFSET: "BIGINT"}
TYPES = {"user": "TEXT", "amount": "BIGINT"}


def column(name, kind="TEXT", *, required=False):
    return Column(name, kind, kind, required)


USER, AMOUNT = column("user"), column("amount", "BIGINT")


def table_check(mode=None, *, create=False, evolve=False):
    def accepts(name, found):
        return found.type == TYPES[name]

    return TableSchemaCheck(mode or WriteMode("clicks"), "sqlite clicks", TYPES, GUARDS, accepts, create, evolve)


class Database:
    """A table in memory: a statement that creates or alters it makes it fit."""

    def __init__(self, *columns):
        self.columns, self.statements = list(columns), []

    def read_columns(self):
        return list(self.columns)

    def execute(self, statements):
        self.statements += statements
        present = {column.name for column in self.columns}
        self.columns += [column(name, kind) for name, kind in TYPES.items() if name not in present]


@pytest.mark.parametrize(
    ("existing", "settings", "statements"),
    [
        ([USER, AMOUNT], {}, []),
        ([USER, AMOUNT, column("note")], {}, []),
        ([], {"create": True}, ['CREATE TABLE IF NOT EXISTS "clicks" ("user" TEXT, "amount" BIGINT)']),
        ([USER, AMOUNT], {"create": True, "evolve": True}, []),
        ([USER], {"evolve": True}, ['ALTER TABLE "clicks" ADD COLUMN "amount" BIGINT']),
    ],
)
def test_a_table_is_created_or_evolved_if_the_settings_allow_it(existing, settings, statements):
    database = Database(*existing)
    found = table_check(**settings).ensure_table(database.read_columns, database.execute)
    assert database.statements == statements
    assert {"user", "amount"} <= {column.name for column in found}


@pytest.mark.parametrize(
    ("existing", "settings", "message", "hint"),
    [
        ([], {}, "there is no such table", "create=True"),
        ([], {"evolve": True}, "there is no such table", "create=True"),
        ([USER], {}, "the table has no column amount", "evolve=True adds them; or: ALTER TABLE"),
        ([USER], {"create": True}, "the table has no column amount", "evolve=True"),
        ([USER, column("amount")], {"evolve": True}, "amount is BIGINT, not TEXT", "change the transform"),
        (
            [USER, AMOUNT, column("day", "DATE", required=True)],
            {"evolve": True},
            "the rows have no column day, which the table requires",
            "change the transform",
        ),
        (
            [column("amount")],
            {},
            "no column user; amount is BIGINT, not TEXT; rows: user TEXT, amount BIGINT; table: amount TEXT",
            "change the transform",
        ),
    ],
)
def test_a_table_that_does_not_fit_is_refused_the_same_way_by_a_run_and_by_check(existing, settings, message, hint):
    database, check = Database(*existing), table_check(**settings)
    for refusing in (
        lambda: check.ensure_table(database.read_columns, database.execute),
        lambda: check.check(existing),
    ):
        with pytest.raises(ConfigError) as refused:
            refusing()
        assert message in refused.value.message
        assert hint in refused.value.hint
    assert database.statements == []


@pytest.mark.parametrize(
    ("existing", "settings"), [([], {"create": True}), ([USER], {"evolve": True}), ([USER, AMOUNT], {})]
)
def test_check_accepts_what_a_run_would_create_or_evolve(existing, settings):
    table_check(**settings).check(existing)


def test_an_upserted_table_has_its_key_and_the_guard_columns():
    check = table_check(WriteMode("shop.clicks", "upsert", ("user",)), create=True)
    assert check.create_statement() == (
        'CREATE TABLE IF NOT EXISTS "shop"."clicks" ("user" TEXT, "amount" BIGINT, "headrace_origin" TEXT, '
        '"headrace_offset" BIGINT, PRIMARY KEY ("user"))'
    )
    assert check.missing([USER, AMOUNT]) == [ORIGIN, OFFSET]
