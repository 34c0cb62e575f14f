"""Sinks and offset stores, one package per system."""
