"""The process that writes a file, as the file's header describes it. Nothing depends on this description."""

import os
import sys
from collections.abc import Mapping
from functools import lru_cache


@lru_cache(maxsize=1)
def writer_name() -> Mapping[str, object]:
    """Describe this process for the headers of its files."""
    return {"pid": os.getpid(), "program": os.path.basename(sys.argv[0] or "python")[:64]}


os.register_at_fork(after_in_child=writer_name.cache_clear)
