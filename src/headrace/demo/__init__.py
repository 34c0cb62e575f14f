"""The demo of `headrace demo`."""
