"""Tests of the attention lab."""
