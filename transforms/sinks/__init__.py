"""Sinks: idempotent, so that a replayed bundle or a second run changes nothing."""
