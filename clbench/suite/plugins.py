"""Plug-in files, and digests of code outside clbench."""

import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.machinery import PathFinder
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from clbench.core import errors
from clbench.core.files import digest, read_file, user_path
from clbench.core.registry import Registry
from clbench.core.user_code import WARNINGS, GlobalState
from clbench.methods.base import METHODS
from clbench.models.locate import MODELS
from clbench.shifts.base import SHIFTS
from clbench.tasks.metrics import METRICS
from clbench.tasks.registry import TASKS


@dataclass(frozen=True)
class Plugin:
    """An imported plug-in file.

    It has an absolute `path`, the name of its `module` (the same whenever that path is loaded), and
    the `digest` of its bytes.
    """

    path: Path
    module: str
    digest: str


def registries() -> tuple[Registry[Any], ...]:
    """Return the registries that plug-ins may add to."""
    return METHODS, SHIFTS, TASKS, MODELS, METRICS


def load_plugins(paths: Iterable[str | Path]) -> tuple[Plugin, ...]:
    """Import plug-in files in order, each once; see `load_plugin` for errors."""
    unique = dict.fromkeys(user_path(path, "plug-in").resolve() for path in paths)
    return tuple(load_plugin(path) for path in unique)


def load_plugin(path: str | Path) -> Plugin:
    """Import a plug-in file unless it is already imported and unchanged.

    Raises a PluginError if it is not a readable Python file, raises an error on import (the message
    names the line), or registers nothing.
    """
    link = user_path(path, "plug-in")
    file = link.resolve()
    if file.is_dir() or file.suffix != ".py":
        problem = "is a folder" if file.is_dir() else "is not a .py file"
        raise errors.PluginError(f"plug-in {path}: {problem}. Give a .py file.")
    try:
        content = read_file(file)
    except FileNotFoundError:
        raise errors.PluginError(f"plug-in {path}: {errors.describe_missing(link)}.") from None
    except OSError as error:
        raise errors.PluginError(f"plug-in {path}: cannot be read: {error.strerror}.") from error
    return load_content(file, content)


def load_content(file: Path, content: bytes) -> Plugin:
    """Import a plug-in from its content, also where there is no `file`; errors of `load_plugin`.

    `file` is an absolute path, which names the module.
    """
    new = digest(content)
    stem = re.sub(r"[^0-9A-Za-z]", "_", file.stem)
    name = f"clbench_plugin_{stem}_{digest(str(file))[:8]}"
    if getattr(sys.modules.get(name), "__clbench_digest__", None) != new:
        _execute(file, name, content)
    if not sys.modules[name].__dict__["__clbench_registers__"]:
        kinds = ", ".join(registry.kind for registry in registries())
        raise errors.PluginError(
            f"plug-in {errors.display_path(file)}: registers nothing. Register one of {kinds}, for "
            "instance by decorating a class with @clbench.method('name')."
        )
    return Plugin(file, name, new)


def source_digest(reference: str) -> str | None:
    """Return a digest of the code behind ``"module:object"``; None for code of clbench.

    The digest is that of the module's file; the module is not imported. For a class defined in
    a notebook or a script, it is that of the class's own source. Raises a PluginError if there is
    no such module.
    """
    module, _, attribute = reference.partition(":")
    if module.partition(".")[0] == "clbench":
        return None
    loaded = sys.modules.get(module)
    file = getattr(loaded, "__file__", None) or _find_file(module)
    if loaded is not None and (module == "__main__" or file is None):
        return _text_digest(loaded, attribute)
    if file is None:
        raise errors.PluginError(f"{reference!r}: there is no module {module!r}. Is it installed?")
    return digest(Path(file))


def _execute(file: Path, name: str, content: bytes) -> None:
    """Run the file as a module, and store its digest and whether it registers anything in it."""
    import torch  # noqa: F401 - so that its state before the import is known

    module, state = ModuleType(name), GlobalState(without=[WARNINGS])
    module.__file__ = str(file)
    module.__dict__["__clbench_digest__"] = digest(content)
    existing = {registry.kind: set(registry.names()) for registry in registries()}
    # Type hints of settings are resolved through sys.modules, so it must be there first.
    sys.modules[name] = module
    try:
        exec(compile(content, str(file), "exec", dont_inherit=True), module.__dict__)
    except BaseException as error:
        sys.modules.pop(name, None)
        if isinstance(error, KeyboardInterrupt):
            raise
        text = str(error.msg) if isinstance(error, SyntaxError) else errors.error_text(error)
        if not isinstance(error, errors.ClbenchError):
            text = f"{type(error).__name__}: {text}".removesuffix(": ")
        raise errors.PluginError(
            f"plug-in {errors.display_path(file)}{_line(file, error)}: {text}"
        ) from error
    finally:
        state.restore()
    module.__dict__["__clbench_registers__"] = any(
        # New, or registered by an earlier import of the module.
        entry not in existing[registry.kind] or registry.where(entry).startswith(f"{name}:")
        for registry in registries()
        for entry in registry
    )


def _line(file: Path, error: BaseException) -> str:
    """Return ``:LINE``, the line of the plug-in that failed; empty if unknown."""
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return f":{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(file)]
    return f":{lines[-1]}" if lines else ""


def _find_file(module: str) -> Path | None:
    """Return the file of a module without importing it or its packages."""
    top, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    for part in rest:
        spec = spec and PathFinder.find_spec(part, spec.submodule_search_locations or [])
    return Path(spec.origin) if spec and spec.has_location and spec.origin else None


def _text_digest(module: ModuleType, attribute: str) -> str:
    target: Any = module
    try:
        target = attrgetter(attribute)(module)
        return digest(inspect.getsource(target))
    except (AttributeError, OSError, TypeError):
        # Its source is not available: every definition counts as new code.
        return digest(f"{attribute}:{id(target)}")
