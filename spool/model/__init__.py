"""The values that every other package speaks of: ids, positions, messages, settings, names of files."""
