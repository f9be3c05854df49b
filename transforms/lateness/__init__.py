"""Windows, the verdict in time / too late, and aggregates that correct themselves."""
