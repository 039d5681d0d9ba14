"""The parts of which an open space is made."""
