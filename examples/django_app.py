"""Django in one file: limits in a file and on views, logins that count only failures, users, and a custom response."""
# Run it: gunicorn --chdir examples django_app:application --bind 127.0.0.1:8000
# Run it: uvicorn --app-dir examples django_app:asgi_application --port 8000
# Show its limits: python examples/django_app.py ratelimit check

import json
import sys
from pathlib import Path

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.management import execute_from_command_line
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse, JsonResponse
from django.urls import include, path
from django.views import View
from users import sign_in, user_of

from ratelimit_mw.django import exempt, limit

settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["127.0.0.1", "localhost"],
    SECRET_KEY="for this example only",
    INSTALLED_APPS=["ratelimit_mw.django"],  # for the checks and the command
    MIDDLEWARE=["ratelimit_mw.django.RateLimitMiddleware"],
    RATELIMIT_MW={
        "settings": Path(__file__).with_name("ratelimit.toml"),
        "features": {"user": lambda request: user_of(request.headers.get("Authorization"))},
        "rejection": f"{__name__}.too_many",
    },
)


def too_many(request, verdict):
    """The response to rejected requests. The middleware adds the rate limit headers."""
    return JsonResponse({"error": "slow down", "seconds": verdict.retry_after}, status=verdict.status)


def home(request):
    verdict = request.ratelimit
    return JsonResponse({"rules": verdict.rules, "remaining": min(d.remaining for d in verdict.decisions)})


def login(request):
    """The file counts only responses with status 401 for this rule."""
    data = json.loads(request.body)
    token = sign_in(data["name"], data["password"])
    return HttpResponse("wrong name or password\n", status=401) if token is None else JsonResponse({"token": token})


async def item(request, id):  # noqa: A002 - as the route names it
    return JsonResponse({"id": id})


class Report(View):
    @limit("3/minute", name="report", key=["user"])  # in addition to the rules of the file
    def get(self, request):
        user = user_of(request.headers.get("Authorization"))
        return JsonResponse({"for": user}, status=200 if user else 401)


@exempt
def health(request):
    return HttpResponse("fine\n")


api = [path("items/<int:id>", item), path("report", Report.as_view())]
urlpatterns = [path("", home), path("login", login), path("health", health), path("api/", include(api))]

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
application = get_wsgi_application()
asgi_application = get_asgi_application()
