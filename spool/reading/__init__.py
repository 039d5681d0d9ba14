"""Reading messages without taking them: their places from the index, and their bodies from the files."""
