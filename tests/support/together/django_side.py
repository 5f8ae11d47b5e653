"""One of three applications that share their limits: Django, with a custom user."""

import os

import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application

settings.configure(
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes"],
    MIDDLEWARE=[f"{__name__}.sign_in", "ratelimit_mw.django.RateLimitMiddleware"],
    RATELIMIT_MW=os.environ["LIMITS"],
)
django.setup()

from django.contrib.auth.models import AnonymousUser, User  # noqa: E402 - needs the settings
from django.http import HttpResponse  # noqa: E402
from django.urls import path  # noqa: E402

from ratelimit_mw.django import limit  # noqa: E402


def sign_in(get_response):
    def middleware(request):
        number = request.headers.get("X-User")
        request.user = AnonymousUser() if number is None else User(pk=int(number))
        return get_response(request)

    return middleware


def page(request):
    return HttpResponse("page")


def item(request, id):  # noqa: A002 - as the template has it
    return HttpResponse(str(id))


def login(request):
    return HttpResponse("no", status=401)


@limit("3/hour", name="report", key=["user"], algorithm="sliding-window-log")
def report(request):
    return HttpResponse("report")


urlpatterns = [path("page", page), path("items/<int:id>", item), path("login", login), path("report", report)]
application = get_wsgi_application()
