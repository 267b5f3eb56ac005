"""Tests: folders mirror app/."""
