import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

import clbench
from clbench.core.errors import SettingsError, command_line, dashed, named
from clbench.core.options import Option, check_types, described, options_of, takes


@dataclass(frozen=True, kw_only=True)
class Brew:
    cups: Annotated[int, Option("How many cups to brew.", "N")] = 2
    milk: Annotated[str | None, Option("What to add.", "NAME", default="the cow's")] = None


@takes(Brew)
def brew(arguments: Brew) -> str:
    """Brew coffee.

    Parameters
    ----------
    {options}
    """
    return f"{arguments.cups} with {arguments.milk}"


def test_a_function_takes_the_fields_of_a_dataclass() -> None:
    assert brew(cups=3) == "3 with None"
    assert str(inspect.signature(brew)) == "(*, cups: int = 2, milk: str | None = None) -> str"
    assert brew.__doc__ == (
        "Brew coffee.\n\nParameters\n----------\ncups\n    How many cups to brew.\nmilk\n"
        "    What to add. By default the cow's."
    )
    with pytest.raises(TypeError, match=r"^brew\(\) got an unexpected keyword argument 'sugar'$"):
        brew(sugar=1)  # type: ignore[call-arg]


def test_a_dataclass_describes_its_options() -> None:
    @described
    @dataclass(frozen=True)
    class Cup:
        """A cup.

        {options}
        """

        size: Annotated[int, Option("Size in ml.", "N")] = 200

    assert Cup.__doc__ == "A cup.\n\nsize\n    Size in ml."
    assert str(inspect.signature(Cup)) == "(size: int = 200) -> None"


def test_options_of_a_dataclass() -> None:
    kinds = {name: kind for name, (kind, _) in options_of(Brew).items()}
    assert kinds == {"cups": int, "milk": str | None}
    assert options_of(Brew)["cups"][1].metavar == "N"


@dataclass(frozen=True, kw_only=True)
class Order:
    cups: Annotated[int, Option("How many.", "N")] = 1
    share: Annotated[float | None, Option("Milk.", "X")] = None
    size: Annotated[Literal["small", "large"] | None, Option("Size.")] = None
    hot: Annotated[bool, Option("Whether it is hot.")] = True
    beans: Annotated[Sequence[str | Path] | None, Option("Beans.", "A,B")] = None

    def __post_init__(self) -> None:
        check_types(self)


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"cups": "2"}, "cups: must be a whole number, got '2'."),
        ({"cups": 2.5}, "cups: must be a whole number, got 2.5."),
        ({"cups": True}, "cups: must be a whole number, got true."),
        ({"share": "1"}, "share: must be a number, got '1'."),
        ({"size": "smal"}, "size: must be 'small' or 'large', got 'smal'. Did you mean 'small'?"),
        ({"cups": [10**5000]}, "cups: must be a whole number"),
        ({"share": "x", "cups": 10**5000}, "share: must be a number, got 'x'."),
        ({"size": 10**5000}, "size: must be 'small' or 'large', got a number of too many digits"),
        ({"hot": "no"}, "hot: must be true or false, got 'no'."),
        ({"beans": [3]}, "beans item 1: must be a text in quotes or an instance of Path"),
    ],
)
def test_options_of_another_type_are_refused(option: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingsError, match=f"^{re.escape(text)}"):
        Order(**option)
    with command_line(), pytest.raises(SettingsError, match=f"^--{re.escape(text)}"):
        Order(**option)


def test_a_single_value_is_a_sequence_of_one() -> None:
    assert Order(beans="arabica", share=1).beans == ("arabica",)
    assert Order(beans=["arabica", Path("x")]).beans == ("arabica", Path("x"))
    assert Order().beans is None


def test_help_lists_the_words_of_an_option() -> None:
    text = " ".join(str(clbench.run.__doc__).split())
    for words in ("fixed, seed", "auto, float32, bf16", "classification, language-model"):
        assert f"One of {words}." in text


def test_options_are_named_as_their_user_writes_them() -> None:
    assert named("keep_stages") == "keep_stages"
    assert named("limit", 20) == "limit=20"
    assert named("precision", "float32") == "precision='float32'"
    assert named("references", False) == "references=False"
    with command_line():
        assert named("keep_stages") == "--keep-stages"
        assert named("limit", 20) == "--limit 20"
        assert named("plugins", "FILE") == "--plugin FILE"
        assert named("references", False) == "--no-references"
        assert named("references", True) == "--references"
    assert named("plugins") == "plugins"
    assert dashed("plugins") == "--plugin"
