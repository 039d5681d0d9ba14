"""Tests of the face of the package: what an application can rely on, whatever lies beneath."""
