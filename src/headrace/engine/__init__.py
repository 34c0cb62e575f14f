"""How a batch is executed: ranges read, records decoded, the transform applied, rows written."""
