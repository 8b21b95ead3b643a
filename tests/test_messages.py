from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from clbench.errors import did_you_mean
from clbench.messages import count, describe_error, describe_missing, describe_type


class Inner(BaseModel):
    x: int


class Size(Enum):
    S = "s"
    L = "l"


def even(value: int) -> int:
    if value % 2:
        raise ValueError("Must be even.")
    return value


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (int, "a", "must be a whole number, got 'a'"),
        (int, 1.5, "must be a whole number, got 1.5"),
        (int, None, "must be a whole number, got nothing"),
        (float, "a", "must be a number, got 'a'"),
        (bool, "perhaps", "must be true or false, got 'perhaps'"),
        (str, True, "must be a text in quotes, got true"),
        (list[int], 3, "must be a list in [brackets], got 3"),
        (tuple[int, int], [1, 2, 3], "must have at most 2 items, got 3"),
        (set[int], 3, "must be a list in [brackets], got 3"),
        (dict[str, int], 3, "must be a table, got 3"),
        (Inner, 3, "must be a table, got 3"),
        (Path, 3, "must be a path in quotes, got 3"),
        (None, 3, "must be left out, got 3"),
        (Literal["a", "b"], "c", "must be 'a' or 'b', got 'c'"),
        (Size, "m", "must be 's' or 'l', got 'm'"),
        (Annotated[int, Field(gt=0)], 0, "must be greater than 0, got 0"),
        (Annotated[int, Field(ge=1)], 0, "must be at least 1, got 0"),
        (Annotated[int, Field(lt=1)], 1, "must be less than 1, got 1"),
        (Annotated[int, Field(le=1)], 2, "must be at most 1, got 2"),
        (Annotated[int, Field(multiple_of=8)], 9, "must be a multiple of 8, got 9"),
        (Annotated[float, Field(allow_inf_nan=False)], float("inf"), "must be a finite number, g"),
        (Annotated[str, Field(pattern="^a")], "b", "must match the pattern '^a', got 'b'"),
        (Annotated[str, Field(min_length=1)], "", "must not be empty"),
        (Annotated[str, Field(min_length=2)], "a", "must have at least 2 characters, got 1"),
        (Annotated[str, Field(max_length=1)], "ab", "must have at most 1 character, got 2"),
        (Annotated[list[int], Field(min_length=1)], [], "must not be empty"),
        (Annotated[list[int], Field(min_length=2)], [], "must have at least 2 items, got none"),
        (Annotated[list[int], Field(min_length=2)], [1], "must have at least 2 items, got 1"),
        (bytes, 3, "must be a valid bytes, got 3"),
    ],
)
def test_no_fault_speaks_with_the_voice_of_pydantic(kind: Any, value: Any, words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_python(value)
    (error,) = caught.value.errors()
    assert describe_error(error).startswith(words)
    assert "should" not in describe_error(error)


def test_a_check_of_ones_own_keeps_its_words() -> None:
    from pydantic import AfterValidator

    with pytest.raises(ValidationError) as caught:
        TypeAdapter(Annotated[int, AfterValidator(even)]).validate_python(3)
    assert describe_error(caught.value.errors()[0]) == "must be even, got 3"


def test_few_names_are_all_told_and_many_cut() -> None:
    assert did_you_mean("mrcp", ["mrpc", "sst2"]) == " Did you mean 'mrpc'? Available: mrpc, sst2."
    assert did_you_mean("x", []) == " Available: none."
    many = [f"glue/{letter}" for letter in "abcdefghij"]
    assert did_you_mean("zzz", many, "clbench list tasks") == (
        " Available: glue/a, glue/b, glue/c, glue/d, glue/e, glue/f and 4 more "
        "(clbench list tasks)."
    )
    assert did_you_mean("glue/j", [*many, "w" * 60]).endswith(" and 5 more.")
    assert did_you_mean("q", ["w" * 60]) == f" Available: {'w' * 39}…."


def test_kinds_counts_and_missing_paths(tmp_path: Path) -> None:
    assert [describe_type(value) for value in (True, 1, 1.5, "a", [], {}, b"", None)] == [
        *("a truth value", "a whole number", "a number", "a text"),
        *("a list", "an object", "bytes", "nothing"),
    ]
    assert [count(1, "class"), count(2, "class"), count(0, "row")] == [
        *("1 class", "2 classes", "0 rows"),
    ]
    assert describe_missing(tmp_path / "none") == "there is no such file"
    (tmp_path / "link").symlink_to("none")
    assert describe_missing(tmp_path / "link") == "is a link to none, which is not there"
