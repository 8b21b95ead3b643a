"""The pretraining as the first column of R."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.checkpoints import make_checkpoint
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

import clbench
from clbench.core.errors import ClbenchError
from clbench.measure.pretraining_scorer import PretrainingScorer, make_scorer
from clbench.models.checkpoint import load_backbone, load_tokenizer
from clbench.results.cell import CellResult
from clbench.training.device import resolve_precision
from clbench.training.protocol import Protocol

SUITE = """
methods = ["vanilla"]
[protocol]
model = "{model}"
epochs = 1
lr = 5e-4
precision = "float32"
limit = 160
curve_points = 2
curve_rows = 8
corpus = "text.txt"
[[scenario]]
shift = "pretraining"
tasks = ["synthetic/sentiment"]
texts = 40
[[scenario]]
name = "two"
shift = "pretraining"
tasks = ["synthetic/sentiment", "synthetic/acceptability"]
texts = 20
"""
WORDS = ["the", "film", "was", "very", "good", "and", "story", "of", "it", "is", "a", "bad"]
CPU = torch.device("cpu")


def sentences(count: int) -> str:
    return "\n".join(" ".join([*WORDS[i % 9 :], *WORDS[: i % 7], f"{i}"]) for i in range(count))


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(sentences(600), encoding="utf-8")
    path = tmp_path / "kept.toml"
    path.write_text(SUITE.format(model="tiny"), encoding="utf-8")
    return path


def run(suite: Path, methods: list[Any], scenario: str = "sentiment-pretraining", **more: Any):
    more.setdefault("out", suite.parent / "out")
    return clbench.run(suite, methods=methods, scenarios=[scenario], **more)


def by_method(cells: tuple[CellResult, ...]) -> dict[str, CellResult]:
    assert all(cell.status == "ok" for cell in cells), [cell.reason for cell in cells]
    return {cell.baseline: cell for cell in cells}


@pytest.mark.slow
def test_the_first_row_and_column_are_the_pretraining_s(suite: Path) -> None:
    random = suite.parent / "ri.toml"
    random.write_text('method = "recadam"\n[settings]\ninitialisation = "random"\n')
    cells = by_method(run(suite, ["vanilla", "frozen", str(random)]).cells)
    vanilla, frozen, recalled = (cells[name] for name in ("vanilla", "frozen", "ri"))
    assert vanilla.tasks == ["pretraining", "synthetic/sentiment"]
    assert [stage.task for stage in vanilla.stages] == ["synthetic/sentiment"]
    before = vanilla.R[0][0]
    assert vanilla.R[0] == [before, None]
    assert vanilla.scores["p_o_before"] == before
    assert vanilla.scores["p_o"] == vanilla.R[1][0]
    assert vanilla.scores["p_s"] == vanilla.R[1][1]
    assert vanilla.metrics[1][0]["cross_entropy"] != vanilla.metrics[0][0]["cross_entropy"]
    assert frozen.scores["forgetting"] == 0.0
    assert frozen.metrics[0][0] == frozen.metrics[1][0] == vanilla.metrics[0][0]
    # `recalled` starts from random weights; its first row still scores the pretrained model.
    assert recalled.R[0] == vanilla.R[0]
    curves = recalled.stages[0].curves
    assert curves["scores"]["pretraining"][0][1] < 0.5 * before
    assert curves["drift"][0][1] > 10.0
    assert vanilla.stages[0].curves["drift"][0] == [0.0, 0.0]
    assert vanilla.stages[0].curves["drift"][-1][1] > 0.0
    assert frozen.stages[0].curves["drift"][-1][1] == 0.0
    (note,) = [n for n in vanilla.notes if n.startswith("pretraining: ")]
    assert "held-out texts of text.txt" in note
    assert vanilla.scenario_report["numbers"]["pretraining_texts"] == 40


@pytest.mark.slow
def test_several_tasks_after_the_pretraining_and_a_shared_first_stage(suite: Path) -> None:
    """ewc takes vanilla's first stage from the cache; with no pull it is vanilla."""
    free = suite.parent / "free.toml"
    free.write_text('method = "ewc"\n[settings]\nimportance = 1e-30\n')
    whole = run(suite, ["vanilla", str(free)], "two", references=True)
    cells = by_method(tuple(cell for cell in whole.cells if cell.reference_of is None))
    assert cells["free"].stages[0].cached
    assert cells["free"].metrics == cells["vanilla"].metrics
    assert cells["free"].stages[0].curves["drift"] == cells["vanilla"].stages[0].curves["drift"]
    cell = cells["vanilla"]
    assert cell.tasks == ["pretraining", "synthetic/sentiment", "synthetic/acceptability"]
    assert [[score is None for score in row] for row in cell.R] == [
        [False, True, True],
        [False, False, True],
        [False, False, False],
    ]
    assert cell.scores["p_o_before"] == cell.R[0][0]
    assert cell.scores["forgetting"] == cell.R[0][0] - cell.R[2][0]
    (alone,) = [c for c in whole.cells if c.reference_of is not None]
    assert alone.R[0][:2] == [None, None]
    frame = whole.frame.set_index("method")
    assert frame["intransigence"]["vanilla"] == alone.R[0][2] - cell.R[2][2]


def scored(folder: str, texts: tuple[str, ...], **protocol: Any) -> tuple[PretrainingScorer, Any]:
    settings = Protocol(model=folder, precision="float32", **protocol)
    scorer = make_scorer(settings, CPU, texts=texts, text_length=128, head_steps=3)
    return scorer, load_backbone(folder)


PRECISION = resolve_precision("float32", CPU)


def test_the_scores_equal_those_of_transformers_text_by_text() -> None:
    from clbench.models.locate import local_folder

    texts = tuple(sentences(30).split("\n"))
    score, backbone = scored("tiny", texts)
    result = score.score(backbone, precision=PRECISION, device=CPU)
    model = AutoModelForMaskedLM.from_pretrained(str(local_folder("tiny", None))).eval()
    mask = load_tokenizer("tiny").mask_token_id
    right = loss = count = 0.0
    for batch in score._batches:
        for ids, there, labels in zip(
            batch["input_ids"], batch["attention_mask"], batch["labels"], strict=True
        ):
            real, targets = ids[there.bool()], labels[there.bool()]
            places = targets != -100
            assert (real[places] == mask).all()
            assert abs(int(places.sum()) - 0.15 * (len(real) - 2)) <= 1.0
            with torch.no_grad():
                logits = model(input_ids=real[None]).logits[0][places]
            right += float((logits.argmax(-1) == targets[places]).sum())
            loss += float(torch.nn.functional.cross_entropy(logits, targets[places]) * len(logits))
            count += len(logits)
    assert result["accuracy"] == pytest.approx(right / count)
    assert result["cross_entropy"] == pytest.approx(loss / count, rel=1e-5)


def test_a_tied_projection_follows_the_backbone() -> None:
    texts = tuple(sentences(30).split("\n"))
    score, backbone = scored("tiny", texts, curve_rows=7)
    before = score.score(backbone, precision=PRECISION, device=CPU)
    part = score.score(backbone, part=True, precision=PRECISION, device=CPU)
    assert sum(len(batch["labels"]) for batch in score._part) == 7
    assert part != before
    with torch.no_grad():
        backbone.get_input_embeddings().weight.mul_(1.5)
    after = score.score(backbone, precision=PRECISION, device=CPU)
    assert abs(after["cross_entropy"] - before["cross_entropy"]) > 0.1
    with torch.no_grad():
        backbone.get_input_embeddings().weight.fill_(float("nan"))
    with pytest.raises(ClbenchError, match="no longer a finite number"):
        score.score(backbone, precision=PRECISION, device=CPU)


@pytest.mark.parametrize("kind", ["bert", "albert"])
def test_a_missing_head_is_fitted_and_noted(kind: str, tmp_path: Path) -> None:
    folder = str(make_checkpoint(kind, tmp_path / kind))
    texts = tuple(sentences(12).split("\n"))
    score, backbone = scored(folder, texts)
    first = score.score(backbone, precision=PRECISION, device=CPU)
    assert "by a head fitted in 3 steps with the encoder frozen" in score.describe(first)
    again, _ = scored(folder, texts)
    assert again.score(backbone, precision=PRECISION, device=CPU) == first
    assert "fewer than 400 tokens: use a longer corpus" in score.describe()
    many, _ = scored(folder, tuple(sentences(300).split("\n")))
    assert "has little to forget" in many.describe({"accuracy": 0.0})


def test_a_decoder_predicts_the_next_token(tmp_path: Path) -> None:
    folder = make_checkpoint("gpt2", tmp_path / "bare")
    whole = AutoModelForCausalLM.from_pretrained(str(folder))  # its projection is tied
    texts = tuple(sentences(12).split("\n"))
    score, backbone = scored(str(folder), texts)
    result = score.score(backbone, precision=PRECISION, device=CPU)
    assert "next-token accuracy" in score.describe(result)
    right = count = 0.0
    for batch in score._batches:
        for ids, there in zip(batch["input_ids"], batch["attention_mask"], strict=True):
            real = ids[there.bool()]
            with torch.no_grad():
                answers = whole.eval()(input_ids=real[None]).logits[0, :-1].argmax(-1)
            right += float((answers == real[1:]).sum())
            count += len(real) - 1
    assert result["accuracy"] == pytest.approx(right / count)
