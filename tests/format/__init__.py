"""Tests of the bytes of a file of messages."""
