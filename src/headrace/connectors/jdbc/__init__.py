"""Databases with a JDBC driver."""
