"""Tests of reclaim, compactions and housekeeping."""
