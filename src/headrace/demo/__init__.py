"""What `headrace demo` shows."""
