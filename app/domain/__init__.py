"""The arithmetic: standard library only, no I/O, no clock, no framework."""
