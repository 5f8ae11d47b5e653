"""FastAPI applications behind the middleware."""

from __future__ import annotations

from typing import Annotated, Any

from calls import ask
from fastapi import Depends, FastAPI, Header, HTTPException, Request

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.fastapi import RateLimitMiddleware, check
from ratelimit_mw.testing import ManualClock


def limited(app: FastAPI, *rules: Rule, limiter: Limiter | None = None, **options: Any) -> FastAPI:
    """Return the application behind the middleware."""
    limiter = limiter or Limiter(rules, clock=ManualClock(1_000_000.0))
    app.add_middleware(RateLimitMiddleware, limiter=limiter, **options)
    return app


def statuses(app: Any, *paths: str, **request: Any) -> list[int]:
    return [ask(app, path, **request).status_code for path in paths]


def current_user(x_user: Annotated[str | None, Header()] = None) -> str | None:
    """Return the user of a dependency."""
    if x_user == "stranger":
        raise HTTPException(401)
    return x_user


async def by_user(request: Request, user: Annotated[str | None, Depends(current_user)]) -> None:
    """Decide a rule whose key only a dependency knows."""
    await check(request, "users", user=user)


def users(limits: str) -> Rule:
    """Return the rule that ``by_user`` decides."""
    return Rule(name="users", limits=limits, key=["user"], match={"view": ""})


async def view() -> str:
    return "view"


def remaining(limiter: Limiter, rule: str, **features: str) -> list[int]:
    plan = limiter.rules.plan_for_rule(rule, None)
    return [d.remaining for d in limiter.decide(plan, features, cost=0, consume=False).decisions]
