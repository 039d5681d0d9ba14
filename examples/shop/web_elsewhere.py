"""The web shop on another machine than its space, which spool-serve shares by HTTP. See web.py for the shop itself."""

import os
from typing import Annotated

from fastapi import FastAPI, Header, HTTPException

import spool

space = spool.connect(os.environ.get("SHOP", "http://127.0.0.1:8815/shop"))  # the token is in XASPOOL_TOKEN
app = FastAPI()


@app.post("/orders", status_code=202)
def order(item: str, idempotency_key: Annotated[str, Header()]) -> str:
    try:
        return space.put("orders", {"item": item}, deduplication_key=idempotency_key)
    except (spool.Full, spool.SystemFailure, spool.CommitUnknown) as later:  # the client has to try again
        raise HTTPException(503, str(later), {"Retry-After": "10"}) from None
