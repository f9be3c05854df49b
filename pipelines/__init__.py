"""Packaged jobs, the engines they run on, and the command line."""
