"""Tests of the calls of an administrator."""
