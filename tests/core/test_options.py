import inspect
from dataclasses import dataclass
from typing import Annotated

import pytest

from clbench.core.errors import command_line, dashed, named
from clbench.core.options import Option, described, options_of, takes


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
