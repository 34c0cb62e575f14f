"""Tools for operators: checks, topics, groups, records, offsets and dead letters."""
