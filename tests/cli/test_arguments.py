import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import pytest
from helpers.commands import Call

from clbench.cli.arguments import Only, command, words
from clbench.core.errors import SettingsError, dashed
from clbench.core.options import Option, options_of
from clbench.runner.resources import Resources
from clbench.search.plan import SearchSettings, TuneSettings
from clbench.suite.options import RunOptions


def test_words_joined_by_commas() -> None:
    assert words("--methods", ["a,b", " c "]) == ["a", "b", "c"]
    assert words("--methods", None) is None
    for texts in ([","], [""], ["a", ""], ["a,,b"]):
        with pytest.raises(SettingsError, match=r"--methods .*: holds an empty name"):
            words("--methods", texts)


def read_minutes(text: str) -> float:
    return 60.0 * float(text.removesuffix("h"))


@dataclass(frozen=True, kw_only=True)
class Brew:
    cups: Annotated[int, Option("Cups.", "N")] = 2
    beans: Annotated[tuple[str, ...], Option("Beans.", "A,B", "How", "all")] = ()
    plugins: Annotated[tuple[Path, ...], Option("Files.", "FILE")] = ()
    roast: Annotated[Literal["dark", "light"] | None, Option("Roast.", "dark|light")] = None
    minutes: Annotated[float | None, Option("Time.", "TIME", read=read_minutes)] = None
    is_hot: Annotated[bool, Option("Hot.")] = False
    milk: Annotated[bool | None, Option("Milk.", default="the cow's")] = None
    note: str = "not an option"


def made(only: str | None = None) -> tuple[Callable[..., int], list[Any]]:
    calls: list[Any] = []
    kind: Any = Brew if only is None else Annotated[Brew, Only(only, milk="the oat's")]

    def brew(brew: kind, place: str = "here") -> int:
        calls.append((brew, place))
        return 3

    return command(brew), calls


def test_a_dataclass_becomes_options() -> None:
    brew, calls = made()
    parameters = inspect.signature(brew).parameters
    names = "cups beans plugins roast minutes is_hot milk place"
    assert list(parameters) == names.split()
    types = {name: get_args(p.annotation)[0] for name, p in list(parameters.items())[:-1]}
    assert types == {
        "cups": int, "beans": list[str] | None, "plugins": list[str] | None,
        "roast": str | None, "minutes": str | None, "is_hot": bool, "milk": bool | None,
    }  # fmt: skip
    shown = {name: get_args(p.annotation)[1] for name, p in list(parameters.items())[:-1]}
    assert [shown[name].default for name in ("cups", "plugins", "is_hot", "milk")] == [
        "--cups", "--plugin", "--is-hot", "--milk/--no-milk",
    ]  # fmt: skip
    assert shown["beans"].help == "Beans.  [default: all]"
    assert shown["plugins"].help == "Files. Repeatable."
    assert shown["beans"].rich_help_panel == "How"
    given = {name: p.default for name, p in parameters.items()}
    assert brew(**given) == 3
    assert calls.pop() == (Brew(), "here")
    values = {"beans": ["a,b", "c"], "plugins": ["x,y.py"], "milk": False, "minutes": "2h"}
    brew(**{**given, **values, "place": "x"})
    assert calls.pop() == (
        Brew(beans=["a", "b", "c"], plugins=[Path("x,y.py")], minutes=120.0, milk=False), "x",
    )  # type: ignore[arg-type]  # fmt: skip


def test_a_command_may_take_some_options_with_other_defaults() -> None:
    brew, calls = made("milk cups")
    parameters = inspect.signature(brew).parameters
    assert list(parameters) == ["milk", "cups", "place"]
    assert get_args(parameters["milk"].annotation)[1].help == "Milk.  [default: the oat's]"
    brew(cups=5, milk=None, place="there")
    assert calls == [(Brew(cups=5), "there")]


@pytest.mark.parametrize(
    ("verb", "kind"),
    [
        ("run", RunOptions),
        ("run", Resources),
        ("search", SearchSettings),
        ("tune", TuneSettings),
        ("tune", Resources),
    ],
)
def test_every_field_is_an_option_of_the_command_line(clbench: Call, verb: str, kind: type) -> None:
    assert options_of(kind).keys() == inspect.signature(kind).parameters.keys()
    text = clbench(verb, "--help")[1]
    for name, (_, option) in options_of(kind).items():
        section = text[text.index(f"\n{option.group}:") :]
        (shown,) = re.findall(rf"\n  {dashed(name)}\b(.*?)(?=\n  -|\n\n)", section, re.DOTALL)
        expected = f"{option.text}{f'  [default: {option.default}]' if option.default else ''}"
        if option.metavar != "A,B" and name in ("scenarios", "plugins"):
            expected = expected.replace(option.text, f"{option.text} Repeatable.")
        assert "".join(expected.split()) in "".join(shown.split())
