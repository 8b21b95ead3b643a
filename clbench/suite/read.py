"""Find suite files by name or path, read them, and check them against the schema."""

import json
import math
import re
import tomllib
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations, takewhile
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from clbench.core import errors
from clbench.core.files import not_utf8, read_file, user_path
from clbench.core.registry import check_name
from clbench.suite.plugins import load_plugins
from clbench.suite.schema import SuiteFile, TaskFile, derived_name
from clbench.tasks.spec import OwnTaskTable

PACKAGE = Path(__file__).resolve().parent.parent

MOST_ERRORS = 8
"""Errors of a file that a message lists."""
HEADER = re.compile(r"""\[\[?[\w."'/ -]+\]\]?$""")
"""The header of a table."""
PLACE = re.compile(r"""(?:\[\[(\w+)\]\] (\d+)(?: '[^']*')?|\[([^]]+)\])? ?("[^"]*"|[\w-]*)""")
"""Table and key at the begin of an error."""
SCENARIO_KEYS = ("name", "shift", "note")
"""Keys of a ``[[scenario]]`` table that are not settings of its shift."""

File = TypeVar("File", bound=BaseModel)


@dataclass(frozen=True)
class Suite:
    """A suite file and its contents."""

    path: Path
    file: SuiteFile

    @property
    def base(self) -> Path:
        """Folder that relative paths in the file are resolved against."""
        return self.path.parent

    @property
    def name(self) -> str:
        """The suite's name."""
        return self.file.name

    @property
    def scenario_names(self) -> list[str]:
        """Names of the scenarios in the file's order."""
        return [scenario.name for scenario in self.file.scenario]


def packaged_files(kind: str, pattern: str = "*.toml") -> dict[str, Path]:
    """Return the files of one kind that come with clbench, by name, sorted.

    `kind` is ``scenarios`` (the suites), ``scenarios/partitions``, ``baselines`` or
    ``results/published``.
    """
    # Inside an installed package, or beside it in a checkout.
    inside = (PACKAGE / f"_{Path(kind).name}", PACKAGE / f"_{kind}")
    for folder in (*inside, PACKAGE.parent / kind):
        if folder.is_dir():
            return {path.stem: path for path in sorted(folder.glob(pattern))}
    raise errors.ClbenchError(f"{PACKAGE} lacks its folder {kind}. Install clbench again.")


def read_suite(name_or_path: str | Path, plugins: Iterable[str | Path] = ()) -> Suite:
    """Read a packaged suite by its name, or any suite file by its path.

    A text that ends in ``.toml`` or contains a path separator is a path. Names of methods, shifts
    and tasks are checked later, by `clbench.suite.plan.make_plan`. The shifts of `plugins` may
    decide the names of scenarios. Raises an UnknownNameError if no packaged suite has that name, or
    a SuiteError with all errors of the file.
    """
    load_plugins(plugins)
    path = _suite_path(name_or_path)
    content = read_toml(path)
    data = {"name": path.stem, **content}
    if isinstance(data.get("scenario"), list):
        data["scenario"] = [
            _scenario(_with_partition(one, path))
            for number, table in enumerate(data["scenario"], 1)
            for one in _orders(table, path, f"[[scenario]] {number} orders")
        ]
    problems = [*_duplicates(data)]
    if "name" not in content:
        try:
            check_name(path.stem)
        except ValueError as error:
            data["name"] = "suite"  # one error is enough
            remedy = "Rename the file, or give a `name`"
            problems.append(f"name: {error}, got {path.stem!r}, the file's. {remedy}")
    file = check_file(path, data, SuiteFile, problems)
    raise_errors(path, _unused(file))
    return Suite(path, file)


def read_tasks(name: str) -> dict[str, OwnTaskTable]:
    """Return the tasks that a file defines: a suite, or a file that has nothing but tasks.

    Raises a SuiteError with all errors of the file.
    """
    path = _suite_path(name)
    if (data := read_toml(path)).keys().isdisjoint({"methods", "scenario"}):
        return check_file(path, data, TaskFile).task
    return read_suite(path).file.task


def _suite_path(name_or_path: str | Path) -> Path:
    text, path = str(name_or_path), user_path(name_or_path, "suite")
    if isinstance(name_or_path, Path) or is_path(text):
        return path.resolve()
    suites = packaged_files("scenarios")
    if text in suites:
        return suites[text]
    hint = (
        errors.did_you_mean(text, suites, "clbench list suites")
        + " Or give the path of a .toml file."
    )
    if Path(f"{text}.toml").is_file():
        hint = f" For the file here write {text}.toml."
    elif text and path.exists():
        hint = f" For the file or folder write ./{text}."
    raise errors.UnknownNameError(f"Unknown suite {text!r}.{hint}")


def is_path(text: str) -> bool:
    """Whether the name of a suite or baseline is a path of a file."""
    return text.endswith(".toml") or "/" in text or "\\" in text or text in (".", "..")


def parse_toml(text: str) -> dict[str, Any]:
    """Return the contents of a TOML text.

    Raises a ValueError if it is not valid, nested too deep, or has a number that JSON cannot hold.
    """
    try:
        data = tomllib.loads(text)
        json.dumps(data, default=str)  # as deep as its readers can go
    except RecursionError:
        raise ValueError("its tables or lists are nested too deep") from None
    for location, value in _leaves(data):
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ValueError(f"{errors.describe_path(location, data)}: must fit into 64 bits")
    return data


def read_toml(path: Path) -> dict[str, Any]:
    """Return the contents of a TOML file.

    Raises a SuiteError if it is missing, a folder, unreadable, not UTF-8 or not TOML (names the
    line), or has a value that is infinite, NaN, a date or a time.
    """
    file = errors.display_path(path)
    folder = path if path.is_dir() else path.parent
    names = sorted(other.name for other in folder.glob("*.toml"))
    if path.is_dir():
        hint = f"one of its files: {errors.join_names(names)}" if names else "a .toml file"
        raise errors.SuiteError(f"{file}: is a folder. Give {hint}.")
    try:
        # Some editors begin files with a byte-order mark, which TOML does not allow.
        data = parse_toml(read_file(path).decode("utf-8-sig"))
    except FileNotFoundError:
        hint = f" In that folder: {errors.join_names(names)}." if names else ""
        raise errors.SuiteError(f"{file}: {errors.describe_missing(path)}.{hint}") from None
    except OSError as error:
        raise errors.SuiteError(f"{file}: cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise errors.SuiteError(f"{file}{not_utf8(error.object, file)}") from error
    except ValueError as error:
        raise errors.SuiteError(
            f"{file}: is not valid TOML: {str(error).partition(';')[0]}."
        ) from error
    problems = []
    for location, value in _leaves(data):
        key = errors.describe_path(location, data)
        if isinstance(value, float) and not math.isfinite(value):
            problems.append(f"{key}: must be a finite number, got {value}")
        elif not isinstance(value, str | int | float):
            problems.append(f"{key}: must not be a date or time; put {value} in quotes")
    raise_errors(path, problems)
    return data


def check_file(
    path: Path, data: dict[str, Any], model: type[File], problems: Iterable[str] = ()
) -> File:
    """Return a file's contents as an instance of `model`.

    Raises a SuiteError with all errors of the file, those given included.
    """
    try:
        # Strict JSON accepts a whole number for a float and a list for a tuple, but no text
        # for a number.
        file = model.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        raise_errors(path, [*errors.describe_errors(error, data, model=model), *problems])
        raise
    raise_errors(path, [*problems])
    return file


def raise_errors(path: Path, problems: Iterable[str]) -> None:
    """Raise one SuiteError with all errors of a file, if any, numbered if there are several.

    Each begins with line and column of its key or table, where that is not ambiguous.
    """
    if not (texts := [errors.sentence(text) for text in problems]):
        return
    with suppress(OSError, ValueError):
        lines = read_file(path).decode("utf-8-sig").splitlines()
        texts = [f"{_place(text, lines)}{text}" for text in texts]
    listed = texts[0]
    if len(texts) > 1:
        listed = " ".join(f"({n}) {text}" for n, text in enumerate(texts[:MOST_ERRORS], 1))
        more = f" And {len(texts) - MOST_ERRORS} more." if len(texts) > MOST_ERRORS else ""
        listed = f"{len(texts)} errors: {listed}{more}"
    raise errors.SuiteError(f"{errors.display_path(path)}: {listed}")


def _place(problem: str, lines: Sequence[str]) -> str:
    """Return ``line 3, column 1: `` for the key, or else the table, that an error begins with."""
    array, number, table, key = PLACE.match(problem).groups()  # type: ignore[union-attr]
    texts = [line.partition("#")[0].strip() for line in lines]
    if array == "scenario" and any("orders" in text for text in texts):
        return ""  # each order is a scenario of its own, so numbers are not those of the file
    if table and f"[{table}]" not in texts:  # an inline table
        table, _, key = table.rpartition(".")
    header = f"[[{array}]]" if array else f"[{table}]"
    places = [n for n, text in enumerate(texts) if text == header] if array or table else [-1]
    places = places[int(number) - 1 : int(number)] if array else places
    if len(places) == 1:
        rest = range(places[0] + 1, len(lines))
        section = takewhile(lambda n: not HEADER.match(texts[n]), rest)
        found = [n for n in section if re.match(rf"{re.escape(key)}\s*[=.]", texts[n])]
        place = found[0] if key and len(found) == 1 else places[0]
        if place >= 0:
            column = len(lines[place]) - len(lines[place].lstrip()) + 1
            return f"line {place + 1}, column {column}: "
    return ""


def _leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[Sequence[Any], Any]]:
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            yield from _leaves(inner, (*path, key))
    else:
        yield path, value


def _orders(table: Any, suite: Path, where: str) -> list[Any]:
    """Return a ``[[scenario]]`` table for each of the `orders` of a sequence, or the table itself.

    Raises a SuiteError for unusable orders; `where` begins its message.
    """
    if not isinstance(table, dict) or table.get("shift") != "sequence":
        return [table]
    if not table.keys() & {"orders", "order"}:
        return [table]
    orders, problem = table.get("orders", {}), ""
    is_table = isinstance(orders, dict) and all(isinstance(some, list) for some in orders.values())
    if "orders" not in table:
        problem = "`order` names one of several `orders`. Leave it out."
    elif "tasks" in table:
        problem = "give either tasks, for a single order, or orders."
    elif not is_table or not orders:
        problem = (
            "must be a table of lists of tasks, such as "
            'orders = { one = ["a", "b"], two = ["b", "a"] }.'
        )
    elif equal := [pair for pair in combinations(orders, 2) if orders[pair[0]] == orders[pair[1]]]:
        problem = f"{equal[0][0]!r} and {equal[0][1]!r} are equal. Keep one of them."
    raise_errors(suite, [f"{where}: {problem}"] * bool(problem))
    rest = {key: value for key, value in table.items() if key != "orders"}
    name = rest.get("name") or rest.get("shift")
    return [
        {**rest, "name": f"{name}-{order}", "tasks": tasks, "order": order}
        for order, tasks in orders.items()
    ]


def _with_partition(table: Any, suite: Path) -> Any:
    """Return a ``[[scenario]]`` table with the content of its `partition` as `classes`."""
    name = table.get("partition") if isinstance(table, dict) else None
    if not isinstance(name, str):
        return table
    packaged = packaged_files("scenarios/partitions")
    if "classes" in table:
        raise_errors(suite, ["give either partition or classes, not both"])
    if name not in packaged and not is_path(name):
        hint = errors.did_you_mean(name, packaged)
        raise_errors(suite, [f"there is no partition {name!r}.{hint} Or give a .toml file."])
    path = packaged.get(name) or user_path(name, "partition", suite.parent).resolve()
    classes = read_toml(path)
    if set(classes) == {"classes"} and isinstance(classes["classes"], dict):
        classes = classes["classes"]
    raise_errors(
        path,
        [
            f'{step}: must be a list of class names, such as kitchen = ["recipe", "calories"]'
            for step, names in classes.items()
            if not (isinstance(names, list) and names)
            or not all(isinstance(n, str | int) for n in names)
        ],
    )
    if len(classes) < 2:
        raise_errors(path, ["must name the classes of two steps or more"])
    return {**table, "classes": classes}


def _scenario(table: Any) -> Any:
    """Return a ``[[scenario]]`` table with a name, and its shift's settings under `settings`."""
    if not isinstance(table, dict):
        return table
    settings = {key: value for key, value in table.items() if key not in SCENARIO_KEYS}
    scenario = {key: table[key] for key in SCENARIO_KEYS if key in table}
    if "name" not in scenario and (name := derived_name(table.get("shift"), settings)):
        scenario["name"] = name
    return {**scenario, "settings": settings}


def _duplicates(data: dict[str, Any]) -> Iterator[str]:
    """Yield errors of scenario names, seeds and methods that occur twice."""
    for key in ("scenario", "seeds", "methods"):
        entries = data.get(key)
        numbers: dict[Hashable, int] = {}
        for number, entry in enumerate(entries if isinstance(entries, list) else (), 1):
            value = entry.get("name") if isinstance(entry, dict) else entry
            if not isinstance(value, str | int):
                continue
            if (earlier := numbers.setdefault((type(value), value), number)) != number:
                location = errors.describe_path((key, number - 1), data)
                remedy = "Remove one of them"
                if key == "scenario":
                    remedy = "Give one of them another `name`"
                yield f"{location}: {value!r} repeats number {earlier}. {remedy}"


def _unused(file: SuiteFile) -> Iterator[str]:
    """Yield an error for each setting of a single task that trains only joined with others."""
    joined, alone = set[str](), set[str]()
    for scenario in file.scenario:
        if scenario.shift == "class-incremental" and len(scenario.task_names) > 1:
            joined.update(scenario.task_names)
        else:
            alone.update(scenario.texts)  # a plug-in's shift may have any setting for its tasks
    for key in ("task_epochs", "task_steps", "task_batch_size"):
        for task in getattr(file.protocol, key):
            if task.partition("[")[0] in joined - alone:
                yield (
                    f"[protocol] {key}.{errors.quote_key(task)}: class-incremental joins this task "
                    f"with others. Remove it, and set {key.removeprefix('task_')} for all tasks"
                )
