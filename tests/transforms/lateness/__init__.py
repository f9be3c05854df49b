"""Tests of `lateness/`: windows, verdicts, aggregates and panes."""
