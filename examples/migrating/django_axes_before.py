"""A login behind django-axes. django_axes_after.py is the same login behind ratelimit_mw."""
# Run it: gunicorn --chdir examples/migrating django_axes_before:application --bind 127.0.0.1:8000

import django
from django.conf import settings

settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["127.0.0.1", "localhost"],
    SECRET_KEY="for this example only",
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "axes"],
    AUTHENTICATION_BACKENDS=["axes.backends.AxesStandaloneBackend", f"{__name__}.Accounts"],
    MIDDLEWARE=["axes.middleware.AxesMiddleware"],
    AXES_HANDLER="axes.handlers.cache.AxesCacheHandler",
    AXES_FAILURE_LIMIT=3,
    AXES_COOLOFF_TIME=1,
    AXES_LOCKOUT_PARAMETERS=["username"],
    AXES_RESET_ON_SUCCESS=True,
    AXES_LOCKOUT_CALLABLE=f"{__name__}.locked",
)
django.setup()

from axes.utils import reset
from django.contrib.auth import authenticate
from django.contrib.auth.signals import user_logged_in
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path


class Ann:
    def get_username(self):
        return "ann"

    def save(self, **fields): ...


class Accounts:
    def authenticate(self, request, username=None, password=None):
        return Ann() if (username, password) == ("ann", "secret") else None


def locked(request, credentials, **response):
    return HttpResponse("locked\n", status=429)


def login(request):
    user = authenticate(request, username=request.POST.get("username"), password=request.POST.get("password"))
    if user is None:
        return HttpResponse("wrong\n", status=401)
    user_logged_in.send(sender=Ann, request=request, user=user)
    return HttpResponse("welcome\n")


def unlock(request, name):
    reset(username=name)
    return HttpResponse("unlocked\n")


urlpatterns = [path("", lambda request: HttpResponse("home\n")), path("login", login), path("unlock/<name>", unlock)]
application = get_wsgi_application()
