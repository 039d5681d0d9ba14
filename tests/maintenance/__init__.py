"""Tests of reclaim, sweeps and housekeeping."""
