"""The intake: files that other programs drop into a folder become messages.

``policies.dropped_states`` has the table of a file's states; ``capture`` finishes the files of a dead intake.
"""

from spool.intake.dropfile import body_of, type_of
from spool.intake.intake import Intake, IntakeCounts

__all__ = ["Intake", "IntakeCounts", "body_of", "type_of"]
