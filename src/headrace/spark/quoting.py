"""Identifiers, quoted for Spark SQL."""


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
