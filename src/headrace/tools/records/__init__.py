"""Records read, decoded, sent and replayed from the command line."""
