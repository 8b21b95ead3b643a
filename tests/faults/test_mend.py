"""Disturbed mending: killed, with a full disk, beside another; the folder is whole or missing."""

import shutil
from functools import partial
from pathlib import Path
from random import Random

import pytest
import torch
from transformers import AutoModelForMaskedLM

from clbench.audit.models import load_base
from clbench.models.locate import TINY
from faults.sandbox import Outcome, Process, command, fill_disk
from faults.spoil import is_campaign
from faults.verdict import Judge, Templates, faults, fresh

pytestmark = pytest.mark.slow
MEND = ["mend", "tiny", "tuned", "--keep", "synthetic/sentiment", "--out", "deep/out", "--force"]
MEND += ["--learn", "synthetic/acceptability", "--rows", "100", "--alpha", "0.5", "--device", "cpu"]
WRITTEN = {"README.md", "config.json", "front.png", "mend.json", "model.safetensors"}
SECONDS = 15.0
"""About how long a mending takes."""


@pytest.fixture
def undisturbed(templates: Templates, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a mended model, with the model that was tuned."""
    folder = tmp_path_factory.getbasetemp() / "mended"
    if not folder.exists():
        folder.mkdir()
        shutil.copytree(TINY, folder / "tuned")
        model = AutoModelForMaskedLM.from_pretrained(TINY)
        torch.manual_seed(0)
        with torch.no_grad():
            for value in model.base_model.parameters():
                value.add_(torch.randn_like(value), alpha=0.02)
        model.save_pretrained(folder / "tuned")
        outcome = command(MEND, folder)
        assert outcome.code == 0, outcome
    return folder


def _start(judge: Judge, undisturbed: Path) -> Path:
    folder = fresh(undisturbed, judge.folder)
    shutil.rmtree(folder / "deep")
    return folder


def _assert_well(outcome: Outcome, folder: Path) -> None:
    """Check that the folder is whole, or that nothing is left beside the tuned model."""
    problems = list(faults(outcome, trained=True))  # a line for each step of the work
    assert problems == [], f"{problems}\n{outcome}"
    assert outcome.code in (0, 2), outcome
    left = {path.name for path in folder.iterdir()} - {"cache"}
    assert left == ({"tuned", "deep"} if outcome.code == 0 else {"tuned"}), outcome


def _assert_ends_as(undisturbed: Path, folder: Path) -> None:
    """Run the same command to its end."""
    outcome = command(MEND, folder)
    _assert_well(outcome, folder)
    assert outcome.code == 0, outcome
    one, two = (place / "deep" / "out" for place in (undisturbed, folder))
    for name in ("mend.json", "model.safetensors", "config.json", "tokenizer.json"):
        assert (one / name).read_bytes() == (two / name).read_bytes(), name
    assert [path.name for path in (folder / "deep").iterdir()] == ["out"]


@pytest.mark.parametrize("number", range(12 if is_campaign() else 2))
def test_a_killed_mending_starts_again(judge: Judge, undisturbed: Path, number: int) -> None:
    folder, rng, out = _start(judge, undisturbed), Random(number), judge.folder / "deep" / "out"
    for kill in range(3):
        process = Process(MEND, folder)
        ended = process.wait(rng.uniform(0.1, SECONDS))
        while kill == 2 and not ended and not [*folder.glob("deep/.out.part/*.json")]:
            ended = process.wait(0.01)  # so that the last kill meets the writing
        ended = ended or process.wait(rng.uniform(0, 0.5) * (kill == 2))
        process.kill()
        judge.tried += 1
        if out.exists():
            assert {path.name for path in out.iterdir()} >= WRITTEN
            load_base(str(out))
            shutil.rmtree(out)
        assert out.exists() is False or ended
    _assert_ends_as(undisturbed, folder)


@pytest.mark.parametrize("at", range(1, 13) if is_campaign() else [1, 4])
def test_a_full_disk_leaves_no_half_of_a_model(judge: Judge, undisturbed: Path, at: int) -> None:
    folder = _start(judge, undisturbed)
    before = partial(fill_disk, folder, at, 700 * (at % 2))
    outcome = command(MEND, folder, before=before)
    judge.tried += 1
    _assert_well(outcome, folder)
    shutil.rmtree(folder / "deep", ignore_errors=True)
    _assert_ends_as(undisturbed, folder)


def test_of_two_mendings_one_is_refused(judge: Judge, undisturbed: Path) -> None:
    folder = _start(judge, undisturbed)
    first = Process(MEND, folder)
    first.wait(0.5)
    outcomes = [command(MEND, folder)]
    first.wait(60)
    outcomes.append(first.outcome())
    judge.tried += 1
    assert sorted(outcome.code or 0 for outcome in outcomes) == [0, 2], outcomes
    assert any("in use by another clbench process" in outcome.err for outcome in outcomes)
    assert {path.name for path in (folder / "deep" / "out").iterdir()} >= WRITTEN
