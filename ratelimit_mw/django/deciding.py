"""The decision on what is asked, sync and async: features are read, the limiter decides, and the verdict is noted."""

from __future__ import annotations

import inspect
from typing import Any

from asgiref.sync import async_to_sync

from ..decision import Verdict
from ..http.features import awaited
from .admission import Current
from .limits import MatchedRequest, ProjectLimits

__all__ = ["adecide", "decide", "later", "now"]


def decide(enforcer: ProjectLimits, asked: MatchedRequest, current: Current) -> Verdict:
    features = enforcer.guard.reader.of(asked.plan, asked.request)
    for name, value in features.items():
        features[name] = now(value)
    verdict = enforcer.limiter.decide(asked.plan, features, request=asked.django)
    enforcer.note(asked, verdict, current)
    return verdict


async def adecide(enforcer: ProjectLimits, asked: MatchedRequest, current: Current) -> Verdict:
    features = await awaited(enforcer.guard.reader.of(asked.plan, asked.request))
    verdict = await enforcer.limiter.adecide(asked.plan, features, request=asked.django)
    enforcer.note(asked, verdict, current)
    return verdict


def now(value: Any) -> Any:
    """What an async function gives where nobody can await it."""
    return async_to_sync(later)(value) if inspect.isawaitable(value) else value


async def later(value: Any) -> Any:
    """What a function gives, async or not."""
    return await value if inspect.isawaitable(value) else value
