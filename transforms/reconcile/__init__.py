"""Reconciliation: too late records are brought into the windows they belong to, each once."""
