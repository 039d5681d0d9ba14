"""The command-line programs. They parse arguments, call the engine and print results."""
