"""The commands of ``spool-admin``."""
