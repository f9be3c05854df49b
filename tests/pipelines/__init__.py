"""Tests of the packaged jobs: flags, engines, reports, and the streaming job itself."""
