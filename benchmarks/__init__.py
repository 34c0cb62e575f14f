"""Benchmarks: Headrace against what a user would otherwise write, in one run on one topic."""
