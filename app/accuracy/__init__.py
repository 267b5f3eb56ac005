"""Every measured case against what this program computes now: nothing of ours is stored.

A suite is a file of measured cases and the function that asks our code the same question. To add
one, write a module with a `SUITE` (case.py) and name it in registry.py.
"""
