"""A login behind ratelimit_mw. django_axes_before.py is the same login behind django-axes."""
# Run it: gunicorn --chdir examples/migrating django_axes_after:application --bind 127.0.0.1:8000

import django
from django.conf import settings

settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["127.0.0.1", "localhost"],
    SECRET_KEY="for this example only",
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "ratelimit_mw.django"],
    AUTHENTICATION_BACKENDS=[f"{__name__}.Accounts"],
    MIDDLEWARE=["ratelimit_mw.django.RateLimitMiddleware"],
    RATELIMIT_MW={
        "rules": [
            {
                "name": "login",
                "match": {"path": "/login", "methods": ["POST"]},
                "key": "form:username",
                "limits": "3/hour",
                "count_when": {"marked": True},
            }
        ],
        "rejection": f"{__name__}.locked",
    },
)
django.setup()

from django.contrib.auth import authenticate
from django.contrib.auth.signals import user_logged_in, user_login_failed
from django.core.wsgi import get_wsgi_application
from django.dispatch import receiver
from django.http import HttpResponse
from django.urls import path

from ratelimit_mw.django import limiter


class Ann:
    def get_username(self):
        return "ann"

    def save(self, **fields): ...


class Accounts:
    def authenticate(self, request, username=None, password=None):
        return Ann() if (username, password) == ("ann", "secret") else None


@receiver(user_login_failed)
def count_failure(request=None, **kwargs):
    if verdict := getattr(request, "ratelimit", None):
        verdict["login"].count()


@receiver(user_logged_in)
def forget_failures(request=None, **kwargs):
    if verdict := getattr(request, "ratelimit", None):
        verdict["login"].reset()


def locked(request, verdict):
    return HttpResponse("locked\n", status=429)


def login(request):
    user = authenticate(request, username=request.POST.get("username"), password=request.POST.get("password"))
    if user is None:
        return HttpResponse("wrong\n", status=401)
    user_logged_in.send(sender=Ann, request=request, user=user)
    return HttpResponse("welcome\n")


def unlock(request, name):
    limiter().reset("login", {"form:username": name})
    return HttpResponse("unlocked\n")


urlpatterns = [path("", lambda request: HttpResponse("home\n")), path("login", login), path("unlock/<name>", unlock)]
application = get_wsgi_application()
