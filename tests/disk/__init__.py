"""Tests of the seam to the file system."""
