"""Commits: what has been read, what of it is in the store, and what may therefore be forgotten."""
