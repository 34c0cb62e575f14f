"""Code shared by the sinks of several systems."""
