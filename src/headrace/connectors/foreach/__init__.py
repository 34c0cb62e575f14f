"""A function of the user's own, called with each row or each partition."""
