"""Tests of what queues are told to do with their messages."""
