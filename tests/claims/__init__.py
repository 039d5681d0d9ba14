"""Tests of claims outside of any transaction."""
