"""A queue space for asyncio: ``async with spool.aio.open(path) as space: await space.put(…)``."""

from spool.aio.claims import Claims
from spool.aio.space import Space, Transaction, create, import_space, open, verify_export

__all__ = ["Claims", "Space", "Transaction", "create", "import_space", "open", "verify_export"]
