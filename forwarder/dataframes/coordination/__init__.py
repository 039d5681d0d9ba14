"""The coordinator of a write: a lock, and the process that holds it."""
