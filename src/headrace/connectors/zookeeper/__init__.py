"""ZooKeeper."""
