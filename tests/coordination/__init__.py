"""Tests of locks, claims and wakeups between processes."""
