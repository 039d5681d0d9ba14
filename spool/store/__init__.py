"""The parts of an open space."""
