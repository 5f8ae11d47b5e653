"""A mistake that Django's start finds has its file, line and path in the message."""

from pathlib import Path

import pytest
from django.urls import path
from django_calls import hello, project
from misplaced import MISTAKES, check_place, settings_file

from ratelimit_mw import ConfigError
from ratelimit_mw.django import RateLimitMiddleware


@pytest.mark.parametrize("mistake", sorted(MISTAKES.keys() - {"a method"}))  # a function has all methods
def test_a_mistake_has_its_place(mistake: str, tmp_path: Path) -> None:
    """The setting RATELIMIT_MW is the path of the file."""
    text, message = MISTAKES[mistake]
    file = settings_file(tmp_path, text)
    with project(str(file), path("login", hello)), pytest.raises(ConfigError) as caught:
        RateLimitMiddleware(hello)
    check_place(str(caught.value).removeprefix("RATELIMIT_MW: "), file, message)
