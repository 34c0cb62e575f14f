"""The command line: a thin layer of commands over the library."""
