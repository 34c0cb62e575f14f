"""Tables, lines and JSON: what the verbs print."""
