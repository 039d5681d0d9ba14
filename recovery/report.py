"""What a scan or a check found: the values of ``spool.findings``, under the name that they had here."""

from spool.findings import LEFT_ALONE, Finding, Kind, RecoveryReport

__all__ = ["LEFT_ALONE", "Finding", "Kind", "RecoveryReport"]
