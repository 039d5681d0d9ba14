"""Tests of recovery: its decisions as values, and openers beside other processes."""
