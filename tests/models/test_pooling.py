"""What checkpoints declare of their pooling."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.checkpoints import as_download
from huggingface_hub import errors

from clbench.core.errors import ModelError
from clbench.models.pooling import declared_pooling, pooling_notes, unread_modules


def pooled(folder: Path, **files: object) -> str:
    """Write a checkpoint's JSON files, without weights, and return the folder."""
    for name, content in {"config": {}, **files}.items():
        path = folder / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    return str(folder)


TRANSFORMER = {"type": "sentence_transformers.models.Transformer", "path": ""}
POOLING = [TRANSFORMER, {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]
POOLING_FILE = "1_Pooling/config"


@pytest.mark.parametrize(
    ("files", "pooling"),
    [
        ({}, None),
        ({"modules": [TRANSFORMER]}, None),
        ({"config": {"summary_type": "last"}}, "last"),
        ({"config": {"summary_type": "cls_index"}}, None),
        ({"config": {"classifier_pooling": "mean"}}, "mean"),
        ({"config": {"classifier_pooling": "cls"}}, "first"),
        ({"modules": POOLING, POOLING_FILE: {"pooling_mode": "lasttoken"}}, "last"),
        (
            {
                "modules": POOLING,
                POOLING_FILE: {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True},
                "config": {"summary_type": "first"},
            },
            "mean",
        ),
        ({"modules": POOLING, POOLING_FILE: {"pooling_mode_cls_token": True}}, "first"),
    ],
)
def test_the_pooling_that_a_checkpoint_declares(
    files: dict[str, object], pooling: str | None, tmp_path: Path
) -> None:
    assert declared_pooling(pooled(tmp_path, **files)) == pooling


@pytest.mark.parametrize(
    ("settings", "mode"),
    [
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, "mean\\+max"),
        ({"pooling_mode": "weightedmean"}, "weightedmean"),
        ({}, ""),
    ],
)
def test_a_pooling_that_clbench_lacks_is_refused(
    settings: dict[str, object], mode: str, tmp_path: Path
) -> None:
    name = pooled(tmp_path, modules=POOLING, **{POOLING_FILE: settings})
    with pytest.raises(ModelError, match=f"declares the pooling '{mode}'.*first, last or mean"):
        declared_pooling(name)


def test_a_declaration_whose_file_is_missing_is_named(tmp_path: Path) -> None:
    name = pooled(tmp_path, modules=POOLING)
    with pytest.raises(ModelError, match=r"1_Pooling/config\.json, which .* is missing or cannot"):
        declared_pooling(name)


def test_a_pooling_that_nothing_tells_is_noted(
    checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint()
    assert pooling_notes(str(folder)) == ()
    cached = as_download(folder, tmp_path, monkeypatch)
    assert declared_pooling("someone/model") is None
    (note,) = pooling_notes("someone/model")
    assert "neither the cache nor the hub tells whether it declares a pooling" in note
    answers: list[Exception] = [OSError("500"), errors.LocalEntryNotFoundError("no answer")]
    answers.append(errors.EntryNotFoundError("404"))

    def download(*arguments: object, **options: object) -> str:
        raise answers.pop(0)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    assert pooling_notes("someone/model") == (note,)
    assert len(answers) == 3  # as nothing is asked where the hub does not answer
    monkeypatch.setattr("clbench.models.locate._require_hub", lambda: None)
    assert [pooling_notes("someone/model") for _ in range(3)] == [(note,), (note,), ()]
    assert not (cached.parent.parent / ".no_exist").exists()  # as in a cache that is only read


def test_a_damaged_declaration_is_named(tmp_path: Path) -> None:
    name = pooled(tmp_path)
    (tmp_path / "modules.json").write_text("[")
    with pytest.raises(ModelError, match=r"modules\.json cannot be read"):
        declared_pooling(name)


@pytest.mark.parametrize("kind", ["Dense", "LayerNorm", "CNN"])
def test_further_modules_are_refused_unless_the_pooling_is_given(kind: str, tmp_path: Path) -> None:
    further = {"type": f"sentence_transformers.models.{kind}", "path": "2_More"}
    normal = {"type": "sentence_transformers.models.Normalize", "path": "3_Normalize"}
    settings = {POOLING_FILE: {"pooling_mode": "mean"}}
    assert declared_pooling(pooled(tmp_path, modules=[*POOLING, normal], **settings)) == "mean"
    name = pooled(tmp_path, modules=[*POOLING, further, normal], **settings)
    with pytest.raises(ModelError, match=f"{kind} after its transformer, .* Set pooling in "):
        declared_pooling(name)
    assert unread_modules(name) == kind
