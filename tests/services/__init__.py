"""Tests of the local servers."""
