"""Watermark strategies, their generators, the minimum over splits, and the Beam adapter."""
