"""Five daily tasks in Django. The lines that limit end with the comment "limits"."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import include, path

from ratelimit_mw.django import limit  # limits

MIDDLEWARE = [
    "django.middleware.common.CommonMiddleware",
    "ratelimit_mw.django.RateLimitMiddleware",  # limits
]
RATELIMIT_MW = {  # limits
    "store": "${REDIS_URL}",  # limits
    "features": {"plan": "daily_django.plan_of"},  # limits
    "rejection": "daily_django.too_many",  # limits
}  # limits


def plan_of(request: HttpRequest) -> str:
    return "pro" if request.headers.get("X-API-Key") == "secret" else "free"


def too_many(request: HttpRequest, verdict: Any) -> HttpResponse:  # limits
    return HttpResponse("slow down", status=429)  # limits


@limit("2/minute")  # limits
def search(request: HttpRequest) -> HttpResponse:
    return HttpResponse("found")


def items(request: HttpRequest) -> HttpResponse:
    return HttpResponse("items")


@limit("2/minute", key=["email", "ip"], count_when={"status": 401})  # limits
def login(request: HttpRequest) -> HttpResponse:
    right = request.POST["password"] == "right"
    return HttpResponse("welcome" if right else "wrong", status=200 if right else 401)


@limit("1/minute", key=["plan", "ip"], per={"plan": {"pro": "4/minute"}})  # limits
def report(request: HttpRequest) -> HttpResponse:
    return HttpResponse("report")


api = include([path("items", items)])
api = limit("3/minute", name="api")(api)  # limits
urlpatterns = [path("search", search), path("login", login), path("report", report), path("api/", api)]
