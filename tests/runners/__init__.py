"""Tests on the Prism engine, and of the engines against each other."""
