"""Tests of the transforms and of what they are made of."""
