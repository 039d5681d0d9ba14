"""Tests of the files of examples/monitoring."""
