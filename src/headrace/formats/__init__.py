"""Formats convert bytes to columns: a format consists of SQL expressions, which Spark evaluates in the JVM."""
