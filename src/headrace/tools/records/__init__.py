"""Consumes, decodes, produces and replays records for the command line."""
