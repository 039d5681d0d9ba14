"""Tests of what an administrator sees and changes."""
