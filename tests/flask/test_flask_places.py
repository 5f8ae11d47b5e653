"""A mistake that Flask's start finds has its file, line and path in the message."""

from pathlib import Path

import pytest
from flask import Flask
from flask_calls import hello
from misplaced import check_place, each_mistake, settings_file

from ratelimit_mw import ConfigError
from ratelimit_mw.flask import RateLimiter


@each_mistake
def test_a_mistake_has_its_place(text: str, message: str, tmp_path: Path) -> None:
    """The place is that of the setting in the file."""
    file = settings_file(tmp_path, text)
    app = Flask("app")
    app.add_url_rule("/login", view_func=hello)
    with pytest.raises(ConfigError) as caught:
        RateLimiter(app, settings=file).check(app)
    check_place(caught.value, file, message)
