"""A shop behind ratelimit_mw. rest_framework_before.py is the same shop behind REST framework's throttles."""
# Run it: gunicorn --chdir examples/migrating rest_framework_after:application --bind 127.0.0.1:8000

from types import SimpleNamespace

from django.conf import settings

settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["127.0.0.1", "localhost"],
    MIDDLEWARE=["django.middleware.common.CommonMiddleware", "ratelimit_mw.django.RateLimitMiddleware"],
    REST_FRAMEWORK={
        "DEFAULT_AUTHENTICATION_CLASSES": [],
        "DEFAULT_THROTTLE_CLASSES": [
            "ratelimit_mw.django.drf.AnonRateThrottle",
            "ratelimit_mw.django.drf.UserRateThrottle",
        ],
        "DEFAULT_THROTTLE_RATES": {
            "anon": "4/min",
            "user": "6/min",
            "uploads": "2/min",
            "burst": "2/s",
            "company": "3/h",
        },
        "UNAUTHENTICATED_USER": None,
        "NUM_PROXIES": 0,
    },
)

from django.core.wsgi import get_wsgi_application
from django.urls import path
from rest_framework.authentication import BaseAuthentication
from rest_framework.response import Response
from rest_framework.views import APIView

from ratelimit_mw.django.drf import ScopedRateThrottle, UserRateThrottle


class Tokens(BaseAuthentication):
    def authenticate(self, request):
        name = request.headers.get("X-API-Key")
        return (SimpleNamespace(pk=name, is_authenticated=True), None) if name else None


class Burst(UserRateThrottle):
    scope = "burst"


class Daily(UserRateThrottle):
    scope = "daily"
    rate = "5/day"


class PerCompany(UserRateThrottle):
    scope = "company"

    def get_cache_key(self, request, view):
        return request.query_params.get("company")


class Home(APIView):
    authentication_classes = [Tokens]

    def get(self, request):
        return Response("home")


class Uploads(Home):
    throttle_classes = [ScopedRateThrottle]
    throttle_scope = "uploads"


class Search(Home):
    throttle_classes = [Burst, Daily]


class Report(Home):
    throttle_classes = [PerCompany]


urlpatterns = [
    path("", Home.as_view()),
    path("about", Home.as_view()),
    path("uploads", Uploads.as_view()),
    path("search", Search.as_view()),
    path("report", Report.as_view()),
    path("health", Home.as_view(throttle_classes=[])),
]
application = get_wsgi_application()
