"""Helpers for all modules: text, paths, redaction. Independent of Kafka and Spark."""
