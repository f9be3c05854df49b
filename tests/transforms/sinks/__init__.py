"""Tests of `sinks/`: the table of windows and the dead letters."""
