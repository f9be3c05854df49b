"""Beam transforms for watermarks, late data and the sinks behind them."""
