"""Finds Java, and fetches and verifies jars."""
