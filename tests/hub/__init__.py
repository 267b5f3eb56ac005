"""Tests of reading from the Hub, and the server they read from."""
