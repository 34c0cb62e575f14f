"""The cluster: what to read, and what the brokers say of it."""
