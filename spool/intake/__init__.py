"""The intake: files that other programs drop into a folder become messages."""

from spool.intake.intake import Intake

__all__ = ["Intake"]
