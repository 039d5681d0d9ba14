"""Tests of the options of queues."""
