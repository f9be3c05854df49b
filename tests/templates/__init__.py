"""Tests of the templates for running jobs elsewhere."""
