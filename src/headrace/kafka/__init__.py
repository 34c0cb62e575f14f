"""Kafka sources, clients, cluster metadata, and offsets in consumer groups."""
