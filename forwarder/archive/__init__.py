"""An archive: the messages that are put into a queue, in Parquet files, each message once. Needs pyarrow, no Spark."""

from forwarder.archive.archive import AFTER_LOSS, Archive, ArchiveReport

__all__ = ["AFTER_LOSS", "Archive", "ArchiveReport"]
