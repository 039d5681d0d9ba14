"""The values that all other packages use: ids, positions, messages, settings, names of files."""
