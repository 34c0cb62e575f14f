"""Kafka."""
