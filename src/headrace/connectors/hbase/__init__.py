"""HBase."""
