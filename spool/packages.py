"""The place of this project's packages; and whether a file of a program's is imported in place of one."""

import os
import sys

BESIDE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # or the path of the zip file that they are in


def in_place_of(error: ImportError) -> str | None:
    """Tell which file is imported in place of ``xa`` or ``forwarder``, and what to do; None if that is not the cause.

    Python imports the first file of that name from the directories of ``sys.path``, e.g. the directory of the program.
    """
    name = (error.name or "").partition(".")[0]
    file = getattr(sys.modules.get(name), "__file__", None)
    if name not in ("xa", "forwarder") or file is None or file.startswith(os.path.join(BESIDE, name, "")):
        return None
    return (
        f"{os.path.abspath(file)} is imported in place of the package {name} of xaspool: rename it, or take its "
        "directory out of PYTHONPATH"
    )
