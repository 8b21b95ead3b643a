"""Which code made something: for what is not shipped with clbench."""

from __future__ import annotations

import hashlib
import inspect
from pathlib import Path
from typing import Any


def code_identity(entry: Any) -> dict[str, str]:
    """The name of `entry` (a function, class or callable object) and its file's digest.

    Where there is no file, as in an interactive session, the module stands for the digest.
    """
    code = entry if inspect.isroutine(entry) or inspect.isclass(entry) else type(entry)
    try:
        content = Path(inspect.getsourcefile(code) or "").read_bytes()
    except (OSError, TypeError):
        return {"code": code.__qualname__, "module": code.__module__}
    digest = hashlib.blake2b(content, digest_size=16).hexdigest()
    return {"code": code.__qualname__, "digest": digest}
