"""The signals of the Django middleware. Receivers are called before the response is sent."""

from typing import Any

from asgiref.sync import sync_to_async
from django.dispatch import Signal

from .admission import DjangoAdmission

__all__ = ["request_limited"]

request_limited = Signal()
"""Sent once for each rejected request, with ``sender``, the middleware's class, and with ``request`` and ``verdict``.

Rules in shadow mode reject no request, so they send no signal. Django logs an error in your receiver, and the client
receives the same response.
"""


def send_rejection(sender: type, admission: DjangoAdmission) -> None:
    request_limited.send_robust(sender, **_arguments(admission))


async def asend_rejection(sender: type, admission: DjangoAdmission) -> None:
    send = getattr(request_limited, "asend_robust", None) or sync_to_async(request_limited.send_robust)  # before 5.0
    await send(sender, **_arguments(admission))


def _arguments(admission: DjangoAdmission) -> dict[str, Any]:
    return {"request": admission.request.framework_request, "verdict": admission.verdict}
