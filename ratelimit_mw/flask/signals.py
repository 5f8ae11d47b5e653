"""The signals of the Flask extension."""

from blinker import Namespace

__all__ = ["request_limited"]

request_limited = Namespace().signal("request-limited")
"""Sent once for each rejected request: the sender is the application, with ``request``, ``verdict`` and ``event``.

It is sent with the event of the request, after the observers. Rules in shadow mode reject no request, so they send no
signal. An error in your receiver is logged, and the client receives the same response.
"""
