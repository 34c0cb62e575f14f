"""Pure decisions, and the contracts of stores, sinks and formats. Uses no external system."""
