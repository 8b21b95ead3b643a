"""Plug-in files, and digests of code that does not come with clbench."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from clbench.errors import ClbenchError, PluginError
from clbench.messages import describe_missing
from clbench.registry import Registry
from clbench.suite.faults import shown


@dataclass(frozen=True)
class Plugin:
    """A plug-in file that was imported.

    Attributes
    ----------
    path
        The file, absolute.
    module
        Name under which it was imported: the same for the same path, so that the file may
        be loaded twice.
    digest
        Of the file's bytes.
    registers
        ``{"method": ["l2-start"], …}``: what it added to the registries.
    """

    path: Path
    module: str
    digest: str
    registers: dict[str, list[str]]


def load_plugins(paths: Iterable[str | Path]) -> tuple[Plugin, ...]:
    """Import each plug-in file once, in order; a path that is named twice counts once.

    Raises
    ------
    PluginError
        See `load_plugin`.
    """
    unique = dict.fromkeys(Path(path).expanduser().resolve() for path in paths)
    return tuple(load_plugin(path) for path in unique)


def load_plugin(path: str | Path) -> Plugin:
    """Import a plug-in file; a file that was imported before and has not changed is not run again.

    Raises
    ------
    PluginError
        If it is no readable Python file, raises while it is imported (the message names the
        line), or registers nothing.
    """
    file = Path(path).expanduser().resolve()
    content = _read(file, path)
    digest = _digest(content)
    stem = re.sub(r"[^0-9A-Za-z]", "_", file.stem)
    name = f"clbench_plugin_{stem}_{_digest(str(file).encode())[:8]}"
    present = sys.modules.get(name)
    if present is None or getattr(present, "__clbench_digest__", None) != digest:
        _execute(file, name, content, digest)
    registers: dict[str, list[str]] = sys.modules[name].__dict__["__clbench_registers__"]
    if not registers:
        raise PluginError(
            f"plug-in {shown(file)}: registers no method, shift, task or model. "
            "Decorate a class with @clbench.method('name') or @clbench.shift('name'), or a "
            "function with @clbench.task('name')."
        )
    return Plugin(file, name, digest, registers)


def source_digest(reference: str) -> str | None:
    """Digest of the code behind ``"module:object"``; None for what comes with clbench.

    For a module that has a file it is the digest of the whole file, read without importing
    the module; for a class typed into a notebook or a script, that of the class's own text.

    Raises
    ------
    PluginError
        If the module cannot be found.
    """
    module, _, attribute = reference.partition(":")
    if module == "clbench" or module.startswith("clbench."):
        return None
    loaded = sys.modules.get(module)
    if module == "__main__" and loaded is not None:
        return _text_digest(loaded, attribute)
    file = getattr(loaded, "__file__", None) or _find_file(module)
    if file is None:
        if loaded is None:
            raise PluginError(f"{reference!r}: there is no module {module!r}. Is it installed?")
        return _text_digest(loaded, attribute)
    return _digest(Path(file).read_bytes())


def registries() -> tuple[Registry[Any], ...]:
    """The registries that plug-ins may add to."""
    from clbench.methods.base import METHODS
    from clbench.models.locate import MODELS
    from clbench.shifts.registry import SHIFTS
    from clbench.tasks.registry import TASKS

    return METHODS, SHIFTS, TASKS, MODELS


def _read(file: Path, given: str | Path) -> bytes:
    if file.is_dir():
        raise PluginError(f"plug-in {given}: is a folder. Give the .py file in it.")
    if file.suffix != ".py":
        raise PluginError(f"plug-in {given}: must be a .py file.")
    try:
        return file.read_bytes()
    except FileNotFoundError:
        raise PluginError(
            f"plug-in {given}: {describe_missing(Path(given).expanduser())}."
        ) from None
    except OSError as fault:
        raise PluginError(f"plug-in {given}: cannot be read: {fault.strerror}.") from fault


def _execute(file: Path, name: str, content: bytes, digest: str) -> None:
    module = ModuleType(name)
    module.__file__ = str(file)
    module.__dict__["__clbench_digest__"] = digest
    before = sys.modules.get(name)
    known = {registry.kind: set(registry.names()) for registry in registries()}
    # Type hints of settings are resolved through sys.modules, so it must be there first.
    sys.modules[name] = module
    try:
        exec(compile(content, str(file), "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit) as fault:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
        raise PluginError(f"plug-in {_place(file, fault)}: {_one_line(fault)}") from fault
    module.__dict__["__clbench_registers__"] = _registered(name, known)


def _place(file: Path, fault: BaseException) -> str:
    """``file:line``, the line being the last one of the plug-in itself that was running."""
    if isinstance(fault, SyntaxError) and fault.filename == str(file):
        return f"{shown(file)}:{fault.lineno}"
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(fault.__traceback__)
        if frame.filename == str(file)
    ]
    return f"{shown(file)}:{lines[-1]}" if lines else shown(file)


def _one_line(fault: BaseException) -> str:
    if isinstance(fault, ClbenchError):
        return str(fault)
    text = fault.msg if isinstance(fault, SyntaxError) else str(fault)
    return f"{type(fault).__name__}: {' '.join(text.split())}" if text else type(fault).__name__


def _registered(module: str, known: dict[str, set[str]]) -> dict[str, list[str]]:
    """Names that are new, or that the module had registered when it was loaded before."""
    found = {}
    for registry in registries():
        names = [
            name
            for name in registry.names()
            if name not in known[registry.kind] or registry.where(name).startswith(f"{module}:")
        ]
        if names:
            found[registry.kind] = names
    return found


def _find_file(module: str) -> Path | None:
    """File of a module that may not be imported yet; only its top-level package is looked up."""
    top, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    origin = Path(spec.origin)
    if not rest:
        return origin if origin.is_file() else None
    place = origin.parent.joinpath(*rest)
    for candidate in (place.with_suffix(".py"), place / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def _text_digest(module: ModuleType, attribute: str) -> str:
    target: Any = module
    for part in attribute.split("."):
        target = getattr(target, part, None)
    try:
        return _digest(inspect.getsource(target).encode())
    except (OSError, TypeError):
        # Typed where Python keeps no text: take it for new code each time it is defined.
        return _digest(f"{attribute}:{id(target)}".encode())


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
