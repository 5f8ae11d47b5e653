"""``ratelimit-mw serve``: decisions over HTTP, for gateways and for programs in other languages."""
