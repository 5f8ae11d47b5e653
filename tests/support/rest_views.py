"""Views of Django REST framework with throttles. The import of django_calls configures Django."""

from types import SimpleNamespace
from typing import Any

from django_calls import still
from rest_framework.authentication import BaseAuthentication
from rest_framework.response import Response
from rest_framework.views import APIView

from ratelimit_mw.django.drf import Throttle

UPLOADS = {"name": "uploads", "limits": "2/minute", "match": {"scope": "uploads"}, "key": ["user|ip"]}
ALL = {"name": "all", "limits": "9/minute"}
BODIES: list[tuple[str, bytes]] = [
    ("application/json", b'{"name": "ann"}'),
    ("application/x-www-form-urlencoded", b"name=ann"),
    ("multipart/form-data; boundary=b", b'--b\r\nContent-Disposition: form-data; name="name"\r\n\r\nann\r\n--b--\r\n'),
]


class Tokens(BaseAuthentication):  # type: ignore[misc] # REST framework has no types
    """Takes the user from a header."""

    def authenticate(self, request: Any) -> Any:
        name = request.headers.get("x-token")
        return (SimpleNamespace(pk=name, is_authenticated=True), None) if name else None


class Items(APIView):  # type: ignore[misc]
    """Responds with the rules that have decided the request."""

    authentication_classes = (Tokens,)
    permission_classes = ()

    def get(self, request: Any, **_: Any) -> Response:
        return Response({"rules": request.ratelimit.rules})

    def post(self, request: Any, **_: Any) -> Response:
        return Response({})


class Uploads(Items):
    """Has a throttle whose rules are in the settings."""

    throttle_classes = (Throttle,)
    throttle_scope = "uploads"


def view_of(*throttles: type, base: type = Items, **members: Any) -> Any:
    """Return a view class with these throttles and members."""
    return type("View", (base,), {"throttle_classes": throttles, **members} if throttles else members)


def rates(**by_scope: Any) -> dict[str, Any]:
    """Return the setting of REST framework with these rates."""
    return {"REST_FRAMEWORK": {"DEFAULT_THROTTLE_RATES": by_scope}}


def ruled(*rules: dict[str, Any], **settings: Any) -> Any:
    """Return a limiter with these rules."""
    return still({"rules": list(rules), **settings})


def statuses_of(served: Any, bodies: list[tuple[str, bytes]], where: str = "/") -> list[int]:
    """Send bodies of these media types."""
    return [served.ask(where, "POST", data=body, content_type=kind).status_code for kind, body in bodies]
