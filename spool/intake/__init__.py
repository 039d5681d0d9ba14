"""The intake: files that other programs drop into a folder become messages."""

from spool.intake.dropfile import body_of, type_of
from spool.intake.intake import Intake, IntakeCounts

__all__ = ["Intake", "IntakeCounts", "body_of", "type_of"]
