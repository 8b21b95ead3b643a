"""Mending: mixtures by hand, the choice, and what is written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.checkpoints import without_padding
from transformers import AutoModel, AutoTokenizer

from clbench.audit.changes import Flips, judge
from clbench.audit.items import Items, load_items
from clbench.audit.mend import TRIMS, Mended, Point, losses, mend
from clbench.audit.models import load_base, load_tuned
from clbench.audit.page import write_mended
from clbench.audit.weights import BASE, DEPTHS, TUNED, Mixer, Mixture
from clbench.cli.app import main
from clbench.core.errors import ClbenchError
from clbench.core.files import whole_folder
from clbench.models.locate import TINY

Copy = Callable[..., str]
TASKS: Any = {"keep": ["synthetic/sentiment"], "learn": "synthetic/acceptability"}


def blur(model: Any) -> None:
    """Add noise to all weights of the backbone."""
    generator = torch.Generator().manual_seed(0)
    for value in model.base_model.parameters():
        noise = torch.randn(value.shape, generator=generator)
        value.add_(noise, alpha=float(value.std()) if value.numel() > 1 else 0.0)


def weights(folder: str | Path) -> dict[str, torch.Tensor]:
    model = AutoModel.from_pretrained(folder, add_pooling_layer=False)
    return {name: value.detach() for name, value in model.named_parameters()}


def test_mixtures_are_interpolations(copy: Copy) -> None:
    folder = copy(blur)
    base = load_base("tiny")
    tuned = load_tuned(folder, base)
    mixer = Mixer(base, tuned)
    one, two = weights(TINY), weights(folder)

    def current() -> dict[str, torch.Tensor]:
        return {n: v.detach().clone() for n, v in tuned.backbone.named_parameters()}

    mixer.apply(Mixture(0.3))
    for name, value in current().items():
        torch.testing.assert_close(value, 0.7 * one[name] + 0.3 * two[name])
    mixer.apply(Mixture(1.0).with_group("upper layers", 0.0))
    for name, value in current().items():
        is_upper = name.startswith("encoder.layer.3.")  # the fourth of four, in thirds
        assert torch.equal(value, (one if is_upper else two)[name]), name
    mixer.apply(TUNED)
    assert all(torch.equal(value, two[name]) for name, value in current().items())


def test_heads_are_mixed_only_where_their_classes_are_the_same(copy: Copy) -> None:
    def noisy(model: Any) -> None:
        model.classifier.weight.add_(1.0)

    base = load_base(copy(classes=("no", "yes")))
    for names, mixes in (
        (("No", "Yes"), True),
        (("LABEL_0", "LABEL_1"), True),
        (("a", "b"), False),
    ):
        tuned = load_tuned(copy(noisy, classes=names), base)
        before = tuned.model.classifier.weight.detach().clone()
        Mixer(base, tuned).apply(Mixture(0.5))
        assert torch.equal(tuned.model.classifier.weight, before) != mixes


def test_trimming_keeps_the_largest_changes(copy: Copy) -> None:
    folder = copy(blur)
    base = load_base("tiny")
    tuned = load_tuned(folder, base)
    Mixer(base, tuned).apply(Mixture(1.0, largest=0.25))
    one, two = weights(TINY), weights(folder)
    name = "encoder.layer.3.output.dense.weight"
    value = tuned.backbone.state_dict()[name]
    is_kept, sizes = value != one[name], (two[name] - one[name]).abs()
    torch.testing.assert_close(value[is_kept], two[name][is_kept])
    assert is_kept.sum() == is_kept.numel() // 4
    assert sizes[is_kept].min() >= sizes[~is_kept].max()


def test_a_share_equal_to_that_of_all_names_no_group() -> None:
    mixture = Mixture(0.5).with_group("embeddings", 0.0)
    assert mixture.groups == (("embeddings", 0.0),)
    assert str(mixture) == "α = 0.5, embeddings: 0"
    assert mixture.with_group("embeddings", 0.5) == Mixture(0.5)


@pytest.fixture(scope="module")
def damaged(copy: Copy, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A model whose backbone is nothing but damage, and the folder of its mended version."""
    folder, out = copy(blur), tmp_path_factory.mktemp("mended") / "out"
    words = ["mend", "tiny", folder, "--keep", "synthetic/sentiment", "--out", str(out)]
    assert main([*words, "--learn", "synthetic/acceptability", "--rows", "200"]) == 0
    return folder, out


def test_damage_is_undone_on_rows_that_the_sweep_did_not_see(damaged: tuple[str, Path]) -> None:
    folder, out = damaged
    found = json.loads((out / "mend.json").read_text())
    chosen = found["chosen"]
    assert chosen["alpha"] < 1 or chosen["groups"]
    assert sum(v["mended"] - v["tuned"] for v in found["unseen"].values()) > 0
    # The model on disk is the mixture that was chosen.
    base = load_base("tiny")
    tuned = load_tuned(folder, base)
    mixture = Mixture(chosen["alpha"], tuple(chosen["groups"].items()), chosen["largest"])
    Mixer(base, tuned).apply(mixture)
    for name, value in weights(out).items():
        torch.testing.assert_close(value, tuned.backbone.state_dict()[name])
    assert (out / "model.safetensors").is_file()
    assert (out / "front.png").is_file()
    card = (out / "README.md").read_text()
    assert "rows not used to choose the mixture" in card
    assert len(found["points"]) <= 11 + 3 + 3 * len(DEPTHS)
    assert [*found["unseen"]] == [*TASKS["keep"], TASKS["learn"]]


@pytest.mark.slow
def test_a_mixture_that_makes_a_task_worse_is_not_written(
    copy: Copy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "deep" / "out"
    words = ["mend", copy(blur), "tiny", "--keep", "synthetic/acceptability", "--out", str(out)]
    words += ["--learn", "synthetic/sentiment", "--rows", "200", "--alpha", "0.1"]
    assert main(words) == 1
    shown = capsys.readouterr()
    assert re.search(r"synthetic/acceptability\b[^/]*\bworse\n", shown.out)
    assert "makes synthetic/acceptability worse" in shown.err
    assert "Nothing is written" in shown.err
    assert "no task is shown to be better" not in shown.out
    assert not [*tmp_path.iterdir()]
    assert main([*words, "--force"]) == 0
    assert (out / "model.safetensors").is_file()
    assert "| worse |" in (out / "README.md").read_text()
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_a_share_that_is_not_worse_is_offered_instead(
    copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, tuned = weights(TINY), copy(blur)
    name = "encoder.layer.3.output.dense.weight"
    moved = weights(tuned)[name] - base[name]

    def hits(model: Any, items: Items, part: Any, device: Any) -> Any:
        """The sweep (100 rows) likes α = .3, then 0, then .7; the other 200 rows lose by .3."""
        value = dict(model.backbone.named_parameters())[name].detach()
        alpha = round(float(((value - base[name]) / moved).median()), 1)
        right = np.zeros(len(items.rows), dtype=bool)
        share = {0.3: 0.9, 0.0: 0.85, 0.7: 0.8}.get(alpha, 0.5)
        if len(items.rows) == 200:
            share = 0.2 if alpha == 0.3 and items.name == TASKS["keep"][0] else 0.5
        right[: round(share * len(right))] = True
        return right

    monkeypatch.setattr("clbench.audit.mend.hits", hits)
    monkeypatch.setattr("clbench.audit.mend.SWEEP_ROWS", 100)
    mended, _ = mend("tiny", tuned, rows=200, **TASKS)
    assert mended.chosen == Mixture(0.3)
    assert mended.worse == TASKS["keep"]
    assert mended.instead == Mixture(0.7)


def test_a_loss_of_the_task_learned_is_the_price_of_a_gain() -> None:
    def judged(keep: int, learn: int) -> list[str]:
        flips = {"k": Flips(max(-keep, 0), max(keep, 0), 500)}
        flips["l"] = Flips(max(-learn, 0), max(learn, 0), 500)
        return losses(judge({name: each.sample() for name, each in flips.items()}, 0.02), "l")

    assert judged(100, -100) == []
    assert judged(0, -100) == ["l"]
    assert judged(-100, 100) == ["k"]
    assert judged(-100, -100) == ["k", "l"]


def test_a_mended_model_needs_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    with whole_folder(tmp_path / "out") as folder:
        (folder / "file").write_text("x")
        assert not (tmp_path / "out" / "file").exists()
        with pytest.raises(ClbenchError, match="in use"), whole_folder(tmp_path / "out"):
            pass
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["file"]
    with pytest.raises(ClbenchError, match="is not empty"), whole_folder(tmp_path / "out"):
        pass
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(ClbenchError, match="cannot be replaced"), whole_folder(Path()):
        pass
    (tmp_path / ".a.part").mkdir()  # what a killed process left
    (tmp_path / ".a.part" / "half").write_text("x")
    with whole_folder(tmp_path / "a") as folder:
        (folder / "whole").write_text("x")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["whole"]
    with whole_folder(tmp_path / "b" / "c"):
        pass
    with pytest.raises(KeyError), whole_folder(tmp_path / "b" / "c"):
        raise KeyError
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "here", "out"]


def test_the_sweep_and_the_final_scores_use_different_rows() -> None:
    (items,) = load_items(["synthetic/sentiment"], data=None, rows=300)
    sweep, final = items.split(100)
    assert (len(sweep.rows), len(final.rows)) == (100, 200)
    assert not set(sweep.rows.first) & set(final.rows.first)


def test_training_rows_of_the_task_learned_are_named(
    copy: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (items,) = load_items([TASKS["learn"]], data=None, rows=1000, extra=80)
    train = set(items.task.train.first) - set(items.task.validation.first)
    sweep, final = items.split(80)
    for part in (sweep, final):
        assert 0 < part.training == sum(text in train for text in part.rows.first)
    monkeypatch.setattr("clbench.audit.mend.hits", lambda m, i, *_: np.ones(len(i.rows), bool))
    words = ["mend", "tiny", copy(), "--keep", *TASKS["keep"], "--learn", TASKS["learn"]]
    words += ["--rows", "1000", "--alpha", "0.5", "--out", str(tmp_path / "out")]
    assert main(words) == 0
    note = (
        f"{items.name}: {sweep.training} of the 80 rows of the sweep and {final.training} of the "
        "1000 final rows are from its training set."
    )
    assert note in capsys.readouterr().out
    assert note in (tmp_path / "out" / "README.md").read_text()
    (stored,) = json.loads((tmp_path / "out" / "mend.json").read_text())["notes"]
    assert note in stored


@pytest.mark.slow
def test_a_tuned_model_that_nothing_beats_is_left_alone(
    copy: Copy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["mend", "tiny", copy(), "--keep", "synthetic/sentiment", "--out", str(out)]
    assert main([*words, "--learn", "synthetic/acceptability", "--rows", "100"]) == 0
    assert "None of the 21 mixtures has a better mean" in capsys.readouterr().out
    assert sorted(path.name for path in out.iterdir()) == ["front.png", "mend.json"]


def test_a_merged_model_is_compared_where_no_adapter_beats_the_tuned_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trimmed = [Mixture(1.0, largest=share) for share in TRIMS]
    points = tuple(Point(each, 0.5, 0.5) for each in (TUNED, Mixture(0.5), BASE, *trimmed))
    merged = trimmed[0], judge({"k": Flips(0, 40, 100).sample()}, 0.02)
    mended = Mended("b", "t", ("k",), "l", points, TUNED, {}, {}, {}, {}, None, print, merged)
    monkeypatch.setattr("clbench.audit.mend.mend", lambda *_, **__: (mended, None))
    assert (
        main(["mend", "b", "t", "--keep", "k", "--learn", "l", "--out", str(tmp_path / "o")]) == 0
    )
    shown = capsys.readouterr().out
    assert "None of the 2 mixtures that stay an adapter has a better mean" in shown
    assert "A merged model (α = 1, largest 5% of the changes; --merge) minus this" in shown
    assert "k +0.400 [" in shown


def test_the_front_holds_the_points_that_none_beats() -> None:
    scores = [(1, 0.5, 0.9), (0.5, 0.7, 0.8), (0.2, 0.6, 0.7), (0, 0.9, 0.5)]
    points = tuple(Point(Mixture(alpha), kept, learned) for alpha, kept, learned in scores)
    mended = Mended("b", "t", ("k",), "l", points, TUNED, {}, {}, {}, {})
    assert [point.mixture.alpha for point in mended.front] == [0, 0.5, 1]


def test_a_mended_model_has_the_tokenizer_of_its_source(tmp_path: Path) -> None:
    source = without_padding(tmp_path / "source")
    points = tuple(Point(each, 0.5, 0.5) for each in (BASE, TUNED, Mixture(0.5)))
    mended = Mended("b", "t", ("k",), "l", points, Mixture(0.5), {}, {}, {}, {})
    (tmp_path / "out").mkdir()
    write_mended(mended, load_base(source), tmp_path / "out")
    own, written = map(AutoTokenizer.from_pretrained, (source, str(tmp_path / "out")))
    assert written("a good film").input_ids == own("a good film").input_ids
    assert written.pad_token is own.pad_token is None
    for name in ("special_tokens_map", "model_input_names", "padding_side"):
        assert getattr(written, name) == getattr(own, name)


def test_bad_input_is_refused(copy: Copy, tmp_path: Path, capsys: Any) -> None:
    with pytest.raises(ClbenchError, match="name each task only once"):
        mend("tiny", copy(), keep=["synthetic/sentiment"], learn="synthetic/sentiment")
    for alpha in (0.0, 1.5, float("nan"), 10**5000):
        with pytest.raises(ClbenchError, match=r"alpha=.*: must be between 0 and 1"):
            mend("tiny", copy(), alpha=alpha, **TASKS)
    for rows in (20, 50.5, 10**5000):
        with pytest.raises(ClbenchError, match=r"rows=.*: must be 50"):
            mend("tiny", copy(), rows=rows, **TASKS)
    tables = [f'[task.{n}]\nsynthetic = "{n}"\n' for n in ("sentiment", "acceptability")]
    scenario = '[[scenario]]\nshift = "sentence-length"\ntask = "sentiment"\n'
    (tmp_path / "two.toml").write_text("".join(['methods = ["vanilla"]\n', *tables, scenario]))
    with pytest.raises(ClbenchError, match=r"learn='.*two.toml': has 2 tasks"):
        mend("tiny", copy(), keep=["synthetic/paraphrase"], learn=str(tmp_path / "two.toml"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("x")
    words = ["mend", "tiny", "tiny-gpt", "--keep", "synthetic/sentiment", "--learn", "glue/sst2"]
    assert main([*words, "--out", str(tmp_path / "full")]) == 2
    assert "is not empty" in capsys.readouterr().err
