"""The web shop. An order is on the disk when the client gets 202. A repeated order creates no second order."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import FastAPI, Header, HTTPException

import spool
from spool import aio


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with aio.create("shop", exist_ok=True) as space:
        await space.create_queue("shipped", exist_ok=True)
        await space.create_queue("failed", exist_ok=True)
        await space.create_queue(
            "orders", exist_ok=True, max_messages=10_000, deduplication_window=86_400, error_queue="failed"
        )
        app.state.space = space
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=202)
async def order(item: str, idempotency_key: Annotated[str, Header()]) -> str:
    try:
        return await app.state.space.put("orders", {"item": item}, deduplication_key=idempotency_key)
    except spool.Full as full:  # the shop has too many orders: the client has to try again
        raise HTTPException(503, str(full), {"Retry-After": "10"}) from None
