"""Shows and changes offsets manually: a change is previewed, refused if it is not safe, and can be undone."""
