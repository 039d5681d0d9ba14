"""Recover a space when it opens, and check and repair it on request."""
