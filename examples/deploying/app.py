"""A FastAPI application to deploy: limits in ratelimit.toml, and a health check without limits."""

import os

from fastapi import FastAPI, WebSocket

from ratelimit_mw.fastapi import RateLimitMiddleware

app = FastAPI()
app.add_middleware(RateLimitMiddleware, settings=os.environ.get("SHOP_LIMITS", "ratelimit.toml"))


@app.get("/")
async def home():
    return {"worker": os.getpid()}


@app.get("/health")
async def health():
    return {"healthy": True}


@app.websocket("/echo")
async def echo(websocket: WebSocket):
    await websocket.accept()
    await websocket.send_text(await websocket.receive_text())
