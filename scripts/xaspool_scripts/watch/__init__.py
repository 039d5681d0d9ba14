"""The programs that watch a space: ``spool-admin top``, and ``spool-admin metrics`` for Prometheus."""
