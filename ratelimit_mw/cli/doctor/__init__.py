"""``ratelimit-mw doctor``: examine the store, the settings and the surroundings of an application."""
