"""Tests of reconciliation: each too late record stands in its window, once."""
