"""Tests of event times and watermarks."""
