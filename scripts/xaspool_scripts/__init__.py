"""The command-line programs: they parse, call and print."""
