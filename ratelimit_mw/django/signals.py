"""The signals of the Django middleware."""

from django.dispatch import Signal

__all__ = ["request_limited"]

request_limited = Signal()
"""Sent once for each rejected request: ``sender`` is the middleware's class, with ``request``, ``verdict``, ``event``.

It is sent with the event of the request, after the observers. Rules in shadow mode reject no request, so they send no
signal. Django logs an error in your receiver, and the client receives the same response.
"""
