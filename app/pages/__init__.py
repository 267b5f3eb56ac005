"""The pages: parse a query, call, render."""
