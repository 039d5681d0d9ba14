"""The server of spaces for other machines (``spool-serve``), by Arrow Flight."""
