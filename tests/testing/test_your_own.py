"""The complete examples of your-own-store.md and your-own-algorithm.md pass their suites."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from folders import page_of

NAMED = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_examples_pass_their_suites(tmp_path: Path) -> None:
    """The files of both pages pass in a pytest process, without a skipped test."""
    for page in ("your-own-store", "your-own-algorithm"):
        for name, text in NAMED.findall(page_of(page).read_text("utf-8")):
            (tmp_path / name).write_text(text, "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    passed = int(re.findall(r"(\d+) passed", done.stdout)[0])
    assert passed == 57
    assert "skipped" not in done.stdout
