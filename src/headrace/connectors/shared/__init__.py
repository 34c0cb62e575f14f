"""What sinks of several systems have in common."""
