"""The common parts of all programs: options, exit codes, output, wording, signals."""
