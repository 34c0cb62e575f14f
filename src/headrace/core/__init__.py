"""What is true without any system: decisions, which are pure, and the contracts."""
