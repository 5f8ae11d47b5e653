"""Misuses of the public names. Each line of code is an error for mypy --strict."""

from ratelimit_mw import Limiter, Rule, SettingsDict, load_settings, normalized_email
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.django import limit as django_limit
from ratelimit_mw.fastapi import RateLimit
from ratelimit_mw.flask import RateLimiter
from ratelimit_mw.starlette import exempt, limit, messages
from ratelimit_mw.wsgi import RateLimitMiddleware as WSGIMiddleware

# each line below is rejected
limit(5, ky="ip")
limit("5/minute", ky="ip")
limit(5)
limit("5/minute", key=5)
limit("5/minute", mode="shaddow")
limit("5/minute", cost=[2])
limit("5/minute", count_when={"code": 401})
limit("5/minute", count_when={"marked": "yes"})
limit("5/minute", count_unless={"marked": True})
limit("5/minute", when_missing="deny")
django_limit("5/minute", ky="ip")
exempt(5)
messages("5/minute", over="ignore")
RateLimit(3.5, algoritm="gcra")
RateLimit(3.5)
RateLimit("3/minute", algoritm="gcra")
Rule(limits=object(), mode="shaddow")
Rule(limits=object())
Rule(limits="5/minute", mode="shaddow")
Rule("5/minute")
RateLimitMiddleware(lambda scope, receive, send: send({}), settings={}, reset="never")
RateLimitMiddleware(lambda scope, receive, send: send({}), settings={}, rest="delta")
WSGIMiddleware(lambda environ, start_response: [], settings={}, headers=["x-rate-limit"])
RateLimiter(settings={}, forwarded_header=["x-real-ip"])
RateLimitMiddleware(lambda scope, receive, send: send({}), settings={"stor": "memory://"})
RateLimitMiddleware(lambda scope, receive, send: send({}), settings={"rules": [{"limits": "5/minute", "ky": "ip"}]})
WSGIMiddleware(lambda environ, start_response: [], settings={"rule": []})
RateLimiter(settings={"trusted_proxy": ["unix"]})
Limiter.from_settings({"stor": "memory://"})
load_settings({"stor": "memory://"})
load_settings({"rules": [{"limits": "5/minute", "algorithm": "gcraa"}]})
limit("5/minute", algorithm="gcraa")
RateLimit("5/minute", algorithm="gcraa")
Rule(limits="5/minute", algorithm="gcraa")
Rule(limits="5/minute", algorithm={"name": "token-bukket"})
Rule(limits="5/minute", algorithm={"name": "token-bucket", "refil": "interval"})
Rule(limits="5/minute", algorithm=str)
a: SettingsDict = {"stor": "memory://"}
b: SettingsDict = {"rules": [{"limits": "5/minute", "ky": "ip"}]}
c: SettingsDict = {"on_store_error": "retry"}
d: str = normalized_email("ann@example.com")
