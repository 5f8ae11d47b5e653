"""Django in one file, under WSGI and under ASGI, behind the limits of ratelimit.toml."""
# Run it: gunicorn --chdir examples django_app:application --bind 127.0.0.1:8000
# Run it: uvicorn --app-dir examples django_app:asgi_application --port 8000

from pathlib import Path

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path

from ratelimit_mw.asgi import RateLimitMiddleware as AsgiRateLimitMiddleware
from ratelimit_mw.wsgi import RateLimitMiddleware

LIMITS = Path(__file__).with_name("ratelimit.toml")

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["127.0.0.1", "localhost"], SECRET_KEY="for this example only")


def hello(request):
    return HttpResponse("hello\n", content_type="text/plain")


urlpatterns = [path("", hello)]
application = RateLimitMiddleware(get_wsgi_application(), settings=LIMITS)
asgi_application = AsgiRateLimitMiddleware(get_asgi_application(), settings=LIMITS)
