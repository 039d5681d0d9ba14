"""The package ``recovery``, under a name that no file of a program's can take.

Its code lies beside this package. ``import recovery`` would find a program's own module of that name first; as modules
of ``spool.recovery`` the code is found by the place of this file alone.
"""

import os
from typing import TYPE_CHECKING

from spool.packages import BESIDE

if TYPE_CHECKING:
    from recovery import mirrored as mirrored
    from recovery import scan as scan

__path__ = [os.path.join(BESIDE, "recovery")]
