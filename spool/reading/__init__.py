"""Messages read without being taken: their places, from the index, and their bodies, from the files."""
