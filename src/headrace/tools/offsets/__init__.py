"""Offsets looked at and moved by hand: shown before they are changed, refused when it is not safe, undone at will."""
