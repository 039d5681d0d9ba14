"""Looking at a space: its figures, their published copy, and the verdict on its health."""
