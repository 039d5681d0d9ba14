"""The package ``recovery``, under a name that no file of a program can take.

The code of ``recovery`` lies beside this package. ``import recovery`` would first find a program's own module of that
name. Python finds the modules of ``spool.recovery`` only by the place of this file.
"""

import os
from typing import TYPE_CHECKING

from spool.packages import BESIDE

if TYPE_CHECKING:
    from recovery import mirrored as mirrored
    from recovery import scan as scan

__path__ = [os.path.join(BESIDE, "recovery")]
