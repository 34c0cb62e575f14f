"""What people ask for beside running pipelines: checks, topics, groups, records, offsets."""
