"""Tests of beam_lateness; each states a law."""
