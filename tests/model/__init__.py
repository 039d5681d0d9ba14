"""Tests of messages, settings and options."""
