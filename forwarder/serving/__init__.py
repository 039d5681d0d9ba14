"""The server ``spool-serve``, which shares spaces with other machines by Arrow Flight."""
