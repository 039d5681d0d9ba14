"""Compare speeds in one interleaved run: ``python -m bench --help``. docs/performance.md explains the measurements."""
