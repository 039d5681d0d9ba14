"""The package ``recovery``, under a name that no module of a program can hide.

The code of ``recovery`` lies beside this package. If a program has its own module ``recovery``, ``import recovery``
finds the program's module. Python finds the modules of ``spool.recovery`` by the path of this file, and not by
``sys.path``.
"""

import os
from typing import TYPE_CHECKING

from spool.packages import BESIDE

if TYPE_CHECKING:
    from recovery import mirrored as mirrored
    from recovery import scan as scan

__path__ = [os.path.join(BESIDE, "recovery")]
