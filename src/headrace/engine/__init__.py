"""Executes a batch: reads ranges, decodes records, applies the transform and writes the rows."""
