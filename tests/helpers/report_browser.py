"""Headless Chromium: run a script in a page, and take a screenshot."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

BROWSER = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
OPTIONS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-extensions",
    "--enable-logging=stderr", "--virtual-time-budget=5000",
]  # fmt: skip


def run_script(page: Path, script: str, folder: Path, width: int = 800) -> tuple[Any, list[str]]:
    """Return what `script`, the body of a function, returns in `page`, and the console's lines."""
    assert BROWSER is not None
    text = page.read_text(encoding="utf-8")
    harness = (
        "<script>addEventListener('load', () => { const result = (() => {" + script + "})();"
        "const out = document.createElement('pre'); out.id = 'harness';"
        "out.textContent = JSON.stringify(result); document.body.append(out); });</script>"
    )
    copy = page.with_name("script.html")
    copy.write_text(text.replace("</body>", f"{harness}</body>"), encoding="utf-8")
    process = subprocess.run(
        [BROWSER, *OPTIONS, f"--user-data-dir={folder}", f"--window-size={width},600",
         "--dump-dom", copy.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    match = re.search(r'<pre id="harness">(.*?)</pre>', process.stdout, re.DOTALL)
    assert match, process.stdout[-2000:]
    console = [line for line in process.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(html.unescape(match[1])), console


def screenshot(page: Path, target: Path, width: int, height: int, folder: Path) -> Path:
    """Save a picture of the page in a window of that size."""
    assert BROWSER is not None
    subprocess.run(
        [BROWSER, *OPTIONS, f"--user-data-dir={folder}", f"--window-size={width},{height}",
         f"--screenshot={target}", page.as_uri()],
        capture_output=True, timeout=120, check=True,
    )  # fmt: skip
    return target
