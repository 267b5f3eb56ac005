"""Bytes or parsed JSON to domain values; bounded in every count and length."""
