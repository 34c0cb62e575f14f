"""A pipeline, and what runs it."""
