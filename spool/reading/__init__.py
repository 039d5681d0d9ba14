"""Read messages without taking them: get their places from the index, and their bodies from the files."""
