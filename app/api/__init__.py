"""The JSON API: parse, call, answer."""
