"""Pipelines and the code that runs them."""
