"""Bytes to columns. A format is a description: SQL expressions that Spark evaluates in the JVM."""
