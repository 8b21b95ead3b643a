"""Which code made something: for what is not shipped with clbench."""

from __future__ import annotations

import hashlib
import inspect
from pathlib import Path
from typing import Any


def code_identity(entry: Any) -> dict[str, str]:
    """Where `entry` (a function, class or callable object) is defined, and its file's digest.

    The digest is left out where there is no file, as in an interactive session.
    """
    code = entry if inspect.isroutine(entry) or inspect.isclass(entry) else type(entry)
    place = {"code": f"{code.__module__}:{code.__qualname__}"}
    try:
        content = Path(inspect.getsourcefile(code) or "").read_bytes()
    except (OSError, TypeError):
        return place
    return {**place, "digest": hashlib.blake2b(content, digest_size=16).hexdigest()}
