"""Uses of the public names that mypy --strict accepts."""

import tomllib
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from starlette.applications import Starlette

from ratelimit_mw import INVALID, Limiter, Quota, Rule, SettingsDict, load_settings, normalized_email
from ratelimit_mw.algorithms import Charge, register
from ratelimit_mw.algorithms.fixed_window import FixedWindow
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.fastapi import RateLimit
from ratelimit_mw.flask import RateLimiter
from ratelimit_mw.starlette import exempt, limit, messages, verdict
from ratelimit_mw.stores import ByteStore, Facts, KeyPage, Write
from ratelimit_mw.wsgi import RateLimitMiddleware as WSGIMiddleware


@limit("5/minute", key=["user|ip"], count_when={"status": [401, 403]}, schedule={"sat,sun": ["9/minute"]})
async def login(request: Any) -> str:
    return "hello"


@limit("5/minute", count_unless={"status": [302, "4xx"]})
@limit("5/minute", count_when={"marked": True, "status": "401"})
def form(request: Any) -> str:
    return "hello"


@limit(["5/minute", Quota(20, 3600.0)], match={"methods": ["POST"]}, cost=lambda request: 2)
@exempt("site")
def upload(request: Any) -> str:
    return "hello"


@exempt
def health(request: Any) -> str:
    return "fine"


@messages("10/second", over="drop")
async def chat(websocket: Any) -> None: ...


text: str = upload(None) + health(None)
remaining: int = verdict(None).decisions[0].remaining
settings: SettingsDict = {
    "store": "memory://",
    "headers": ["ratelimit"],
    "lists": {"deny": {"ip": ["203.0.113.0/24"]}},
    "rules": [{"name": "api", "limits": "100/minute", "per_key": {"client-42": ["1000/minute"]}}],
}
RATELIMIT_MW: SettingsDict = {"rules": [{"overrides": "login", "limits": ["3/minute"]}]}


@register
class MyOwn(FixedWindow):
    name = "my-own"

    def refund(self, state: Any, now: int, consumed: Charge, cost: int) -> Any:
        return super().refund(state, now, consumed, cost)


class MyStore(ByteStore):
    def load(self, keys: Sequence[str]) -> Sequence[bytes | None]:
        return [None for _ in keys]

    def swap(self, writes: Sequence[Write]) -> Collection[str]:
        return [write.key for write in writes if write.before]

    def list_keys(self, prefix: str, cursor: str = "") -> KeyPage:
        return KeyPage([prefix], None)

    def facts(self) -> Iterable[Facts]:
        return [Facts("mine", "here")]


registered: type[MyOwn] = register(MyOwn)
email = normalized_email("ann@example.com")
domain: str = "" if email is INVALID else email.partition("@")[2]


async def limits_of(user: str) -> str:
    return "5/minute"


found = Rule(limits=limits_of, limits_ttl="10s", key=["user"])
rule = Rule(limits=Quota("5/minute"), algorithm={"name": "token-bucket", "refill": "interval"}, mode="shadow")
own = Rule(limits=(5, 60), algorithm=MyOwn, per={"plan": {"pro": "1000/minute"}})
limiter = Limiter([rule, own])
dependency = RateLimit("5/minute", algorithm="gcra")
app = RateLimitMiddleware(Starlette(), settings=settings, reset="epoch", retry_jitter="2s", ipv6_prefix=56)
plain: SettingsDict = {"rules": [{"name": "api", "limits": "100/minute"}]}
load_settings(plain)
load_settings(tomllib.loads('[limits]\nstore = "memory://"')["limits"])
other = WSGIMiddleware(lambda environ, start_response: [b""], settings=plain, body_limit=1024)
extension = RateLimiter(settings="ratelimit.toml", trusted_proxies=["10.0.0.0/8"])
