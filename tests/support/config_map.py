"""A settings file that changes while workers read it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path


class ConfigMap:
    """A settings file behind the links of a Kubernetes ConfigMap, and ways to change it.

    Args:
        folder: The folder of ``ratelimit.toml``.
        toml: Returns the settings of a version. The last rule is used by its name.
        tight: A limit that stays the same, and that a file with a mistake would loosen.
        cuts: Where the first half of a file ends, in characters of its last rule.
    """

    def __init__(self, folder: Path, toml: Callable[[int], str], tight: str, cuts: Sequence[int] = (0, 12)) -> None:
        self._folder, self._toml, self._tight, self._cuts = folder, toml, tight, cuts
        self._target = self._new_folder("0")
        (folder / "..data").symlink_to("..0")
        (folder / "ratelimit.toml").symlink_to("..data/ratelimit.toml")
        self.ways = [self.replace, self.swap_links, self.write_in_halves, self.write_mistakes]

    def _new_folder(self, name: str) -> Path:
        folder = self._folder / f"..{name}"
        folder.mkdir()
        return folder / "ratelimit.toml"

    def replace(self, version: int) -> bool:
        later = self._target.with_name("later")
        later.write_text(self._toml(version))
        later.replace(self._target)
        return True

    def swap_links(self, version: int) -> bool:
        self._target = self._new_folder(str(version))
        self._target.write_text(self._toml(version))
        link = self._folder / "..later"
        link.symlink_to(self._target.parent.name)
        link.replace(self._folder / "..data")
        return True

    def write_in_halves(self, version: int) -> bool:
        """Write rules without the last one, or with a part of it, and then the rest."""
        text = self._toml(version)
        half = text.rindex("[[rules]]") + self._cuts[version // 4 % len(self._cuts)]
        with self._target.open("w") as file:
            file.write(text[:half])
            file.flush()
            time.sleep(0.2)
            file.write(text[half:])
        return True

    def write_mistakes(self, version: int) -> bool:
        """Write limits that would allow everything, in a file with a mistake."""
        mistakes = ("", "wrong = 1\n", "\n[[rules]]\nname = 'first'\nlimits = '1/s'\n", "\n[[rules]]\nlimits =")
        text = self._toml(10**9).replace(self._tight, f"{10**9}/hour")
        mistake = mistakes[version // 4 % len(mistakes)]
        self._target.write_text(mistake and (mistake + text if mistake.startswith("wrong") else text + mistake))
        time.sleep(0.2)
        return False
