"""Speed, as ratios in one interleaved run: ``python -m bench --help``. docs/performance.md says how it is measured."""
