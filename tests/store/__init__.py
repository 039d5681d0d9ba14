"""Tests of an open space's parts."""
