"""The only door to Spark: session, jars, and the ways to read Kafka."""
