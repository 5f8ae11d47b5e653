"""A Django request as features are read from it: the same under WSGI and ASGI."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.conf import settings

from ..asgi.request import ASGIRequest
from ..http.body import Body
from ..http.charset import is_utf8
from ..keys.features import INVALID
from ..wsgi.middleware import WSGIRequest

__all__ = ["SCOPE", "DjangoRequest", "of_django", "user_of"]

SCOPE: Final = "scope"
"""The feature that a throttle of REST framework gives, and nothing else."""


class DjangoRequest:
    """What both kinds of request have. ``django`` is Django's own, which functions of yours are given.

    ``awaits``: whether features may be awaited. ``user`` and ``throttle_scope`` are what REST framework says, where it
    is asked.
    """

    django: Any
    awaits = False
    user: Any = None
    throttle_scope: str | None = None

    @property
    def method(self) -> str:
        return self.django.method or ""

    @property
    def path(self) -> str:
        return self.django.path_info or "/"

    @property
    def peer(self) -> str | None:
        """As middleware before this one may have corrected it."""
        return self.django.META.get("REMOTE_ADDR") or None

    @property
    def query_string(self) -> str:
        return self.django.META.get("QUERY_STRING", "")  # type: ignore[no-any-return]

    def one_of(self, values: list[str]) -> str:
        return values[-1]

    def body(self, limit: int) -> object:
        """Read through Django, so that it has the body, too."""
        most: int | None = settings.DATA_UPLOAD_MAX_MEMORY_SIZE  # Django reads no more of a body at once
        limit = limit if most is None else min(limit, most)
        told = self.django.META.get("CONTENT_LENGTH") or ""
        if told and not (told.isascii() and told.isdigit() and len(told) < 20 and int(told) <= limit):
            return INVALID
        if not told and _size(self.django) > limit:
            return INVALID
        try:
            return self.django.body or None
        except OSError:  # the client went away, or told a length that is not its body's
            return INVALID


class _OverWSGI(DjangoRequest, WSGIRequest):
    pass


class _OverASGI(DjangoRequest, ASGIRequest):
    pass


def of_django(request: Any, awaits: bool = False) -> Any:
    """The request over what the server gave: the environment under WSGI, the scope under ASGI."""
    made: Any = _OverASGI(request.scope) if hasattr(request, "scope") else _OverWSGI(request.META)
    made.django = request
    made.awaits = awaits
    if not is_utf8(request.META.get("CONTENT_TYPE", "")):
        made.query = None  # Django reads the query in the charset of the body
    if _read_before(request):
        made.parsed_body = _form_of(request, made.one_of)
    return made


def user_of(request: Any) -> Any:
    """The primary key of whom Django has authenticated; None where nobody is, or AuthenticationMiddleware did not run.

    Asked only when a rule needs it, as it may read the session and the database; awaited where the stack is async.
    """
    if request.user is not None:
        return _key(request.user)
    django = request.django
    if not request.awaits or not hasattr(django, "user"):
        return _key(getattr(django, "user", None))
    return _awaited_user(django)


async def _awaited_user(django: Any) -> str | None:
    if hasattr(django, "auser"):
        return _key(await django.auser())
    return await sync_to_async(lambda: _key(getattr(django, "user", None)))()


def _key(user: Any) -> str | None:
    return str(user.pk) if user is not None and user.is_authenticated else None


def _size(request: Any) -> int:
    """Of a body whose length nobody told: under ASGI Django has all of it already, under WSGI it takes it for none."""
    stream: Any = getattr(request, "_stream", None)
    if not hasattr(request, "scope") or not stream.seekable():
        return 0
    size: int = stream.seek(0, 2)
    stream.seek(0)
    return size


def _read_before(request: Any) -> bool:
    """Whether the body went to somebody in pieces, so that Django cannot give it as a whole."""
    return getattr(request, "_read_started", False) and not hasattr(request, "_body")


def _form_of(request: Any, one_of: Callable[[list[str]], str]) -> Body:
    """The form that Django has parsed, as it does with multipart; without one nobody knows what was in the body."""
    if hasattr(request, "_post") and (request.POST or request.FILES):
        return Body.of_form(((name, value) for name, values in request.POST.lists() for value in values), one_of)
    return Body(INVALID, "", one_of)
