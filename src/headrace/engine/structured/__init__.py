"""Structured Streaming: what identifies a micro-batch, so that a sink recognises it when it is repeated."""
