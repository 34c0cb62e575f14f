"""Code shared by the sinks and offset stores of SQL databases."""
