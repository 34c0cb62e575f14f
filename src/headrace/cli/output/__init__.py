"""The output of the commands: tables, lines and JSON."""
