"""Spark: the session, its JVM, SQL helpers, and tasks on the executors."""
