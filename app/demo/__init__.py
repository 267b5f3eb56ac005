"""Attention on arrays: NumPy, or torch where it is installed."""
