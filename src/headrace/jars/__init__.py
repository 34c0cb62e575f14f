"""Java: its installation, the jars, and where they come from."""
