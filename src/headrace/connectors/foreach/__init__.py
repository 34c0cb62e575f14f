"""A function of the user, called with each row or each partition."""
