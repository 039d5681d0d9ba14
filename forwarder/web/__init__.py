"""The HTTP server of spaces, for other languages, other machines and Spark: ``spool-serve``."""
