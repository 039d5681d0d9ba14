"""X/Open XA for queue spaces: xids, the resource manager, its flags and codes."""

from spool.model.xid import Xid
from xa.codes import *  # noqa: F403 (X/Open's names, all of them)
from xa.codes import XAError
from xa.resource_manager import ResourceManager

__all__ = ["ResourceManager", "XAError", "Xid"]
