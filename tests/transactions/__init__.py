"""Tests of branches and their ends."""
