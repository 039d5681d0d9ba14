"""A queue space for asyncio: ``async with spool.aio.open(path) as space: await space.put(…)``."""

from spool.aio.space import Space, create, import_space, open, verify_export
from spool.aio.transaction import Transaction

__all__ = ["Space", "Transaction", "create", "import_space", "open", "verify_export"]
