from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model

from clbench.core.errors import (
    count,
    describe_errors,
    describe_missing,
    describe_path,
    describe_type,
    did_you_mean,
)


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    x: int
    y: int = 0


def even(value: int) -> int:
    if value % 2:
        raise ValueError("Must be even.")
    return value


def errors_of(kind: Any, value: Any) -> list[str]:
    model = create_model("Model", __config__=ConfigDict(extra="forbid"), key=(kind, ...))
    data = {"key": value}
    with pytest.raises(ValidationError) as caught:
        model.model_validate(data)
    return describe_errors(caught.value, data, model=model)


Share = Annotated[float, Field(ge=0.0, le=1.0)]
SHARES = Share | Annotated[list[Share], Field(min_length=3)]


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (int, "a", "key: must be a whole number, got 'a'"),
        (int, 1.5, "key: must be a whole number, got 1.5"),
        (float, "a", "key: must be a number, got 'a'"),
        (bool, "perhaps", "key: must be true or false, got 'perhaps'"),
        (str, True, "key: must be a text in quotes, got true"),
        (list[int], 3, "key: must be a list in [brackets], got 3"),
        (list[int], [1, "a"], "key item 2: must be a whole number, got 'a'"),
        (dict[str, int], 3, "key: must be a table, got 3"),
        (Inner, {"x": 1, "z": 1}, "[key] z: unknown key. Available: x, y."),
        (Inner, {}, "[key] x: is missing"),
        (Literal["a", "bb"], "b", "key: must be 'a' or 'bb', got 'b'. Did you mean 'bb'?"),
        (Annotated[int, Field(gt=0)], 0, "key: must be greater than 0, got 0"),
        (Annotated[list[int], Field(min_length=2)], [], "key: must have at least 2 items"),
        (Annotated[float, Field(le=9.0)], math.nan, "key: must be a finite number, got nan"),
        (Annotated[int, AfterValidator(even)], 3, "key: must be even, got 3"),
        (int | list[int], "a", "key: must be a whole number or a list in [brackets], got"),
        (
            Annotated[int, Field(ge=0)] | Annotated[float, Field(gt=0.0, lt=1.0)],
            -1,
            "key: must be a whole number greater than or equal to 0 or a number greater than 0",
        ),
        (SHARES, [0.5], "key: must be a number or a list in [brackets] with at least 3 items"),
        (SHARES, [0.5, 0.1, 2.0], "key item 3: must be less than or equal to 1, got 2.0"),
    ],
)
def test_an_error_names_key_requirement_and_value(kind: Any, value: Any, words: str) -> None:
    (text,) = errors_of(kind, value)
    assert text.startswith(words)


def test_paths_are_written_as_in_a_toml_file() -> None:
    data = {"protocol": {"betas": [1]}, "task": {"a b": {"x": 1}}, "scenario": [{"name": "n"}]}
    assert describe_path(("protocol", "betas", 0), data) == "[protocol] betas item 1"
    assert describe_path(("protocol", "betas", 1), data) == "[protocol] betas item 2"
    assert describe_path(("task", "a b", "x"), data) == '[task."a b"] x'
    assert describe_path(("scenario", 0, "task"), data) == "[[scenario]] 1 'n' task"
    assert describe_path(("seeds", 1), {"seeds": [0]}) == "seeds item 2"


def test_near_names_are_suggested_and_long_lists_cut() -> None:
    assert did_you_mean("mrcp", ["mrpc", "sst2"]) == " Did you mean 'mrpc'?"
    assert did_you_mean("x", ["mrpc", "sst2"]) == " Available: mrpc, sst2."
    assert did_you_mean("x", []) == " Available: none."
    many = [f"glue/{letter}" for letter in "abcdefghij"]
    assert did_you_mean("zzz", many, "clbench list tasks") == (
        " Available: glue/e, glue/f, glue/g, glue/h, glue/i, glue/j and 4 more "
        "(clbench list tasks)."
    )
    assert did_you_mean("q", ["w" * 90]) == f" Available: {'w' * 79}…."


def test_types_counts_and_missing_paths_in_words(tmp_path: Path) -> None:
    assert [describe_type(value) for value in (True, 1, 1.5, "a", [], {}, b"", None)] == [
        *("a boolean", "a whole number", "a number", "a text"),
        *("a list", "an object", "bytes", "nothing"),
    ]
    assert [count(1, "class"), count(2, "class"), count(0, "row")] == [
        *("1 class", "2 classes", "0 rows"),
    ]
    assert describe_missing(tmp_path / "none") == "there is no such file"
    (tmp_path / "link").symlink_to("none")
    assert describe_missing(tmp_path / "link") == "is a link to none, which does not exist"


def test_a_default_that_does_not_fit_is_named() -> None:
    model = create_model("M", size=(int, "x"), __config__=ConfigDict(validate_default=True))
    with pytest.raises(ValidationError) as caught:
        model.model_validate({})
    assert describe_errors(caught.value, {}) == ["size: must be a whole number, got 'x'"]
