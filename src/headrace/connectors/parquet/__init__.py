"""Parquet directories, one per batch: how they are written, published and compacted."""
