"""What any module may use: text, paths, redaction. Knows nothing of Kafka or Spark."""
