"""What sinks and offset stores in SQL databases have in common."""
