"""Linear probes of the features after each stage."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from helpers.workspace import Workspace, measured
from sklearn.linear_model import LogisticRegression

from clbench.core.errors import ClbenchError
from clbench.measure.rows import embed_rows, fit_classes, fit_regression
from clbench.runner.prepare import ScenarioPreparer


def probed(world: Workspace, rows: int = 60) -> Workspace:
    """Let the world's suite fit probes on that many rows."""
    text = world.suite.read_text()
    world.suite.write_text(text.replace("curve_rows = 10", f"curve_rows = 10\nprobe_rows = {rows}"))
    return world


def test_probes_are_off_by_default_and_change_no_score(world: Workspace) -> None:
    plain = world.run("plain", epochs=1)
    assert "probes" not in json.loads(plain.cells[0].to_json())
    assert plain.frame["head_gap"].isna().all()
    run = probed(world).run("probed", epochs=1)
    assert measured(run) == measured(plain)
    assert run.cells[0].probes
    assert run.cells[0].fingerprint != plain.cells[0].fingerprint


def test_frozen_features_are_probed_alike_at_every_stage(world: Workspace) -> None:
    (cell,) = probed(world).run(methods=["frozen"], epochs=1).cells
    assert len(cell.probes) == 3
    assert cell.probes[0] == cell.probes[1] == cell.probes[2]
    row = world.run(methods=["frozen"], epochs=1).frame.iloc[0]
    assert row["features_forgetting"] == 0
    assert row["forward_transfer"] == 0
    assert row["head_gap"] == pytest.approx(cell.probes[2][0] - cell.R[1][0])  # type: ignore[operator]


def test_fewer_rows_than_classes_are_refused(world: Workspace) -> None:
    with pytest.raises(ClbenchError, match=r"probe_rows = 1 is less than the 2 classes of task"):
        probed(world, 1).run(epochs=1)


@pytest.mark.parametrize("method", ["l2p", "progressive-prompts"])
def test_probes_see_the_prompts(world: Workspace, method: str) -> None:
    (cell,) = probed(world).run(methods=[method], epochs=2).cells
    assert cell.probes[1] != cell.probes[0]
    assert cell.probes[2] != cell.probes[1]


def test_the_probe_of_the_pretrained_model_is_logistic_regression_on_its_features(
    world: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenarios: list[Any] = []
    tokenise = ScenarioPreparer.tokenise

    def keep(preparer: ScenarioPreparer, scenario: Any) -> Any:
        scenarios.append((preparer, scenario))
        return tokenise(preparer, scenario)

    monkeypatch.setattr(ScenarioPreparer, "tokenise", keep)
    (cell,) = probed(world, rows=10_000).run(epochs=1).cells
    preparer, scenario = scenarios[0]
    for j, task in enumerate(scenario.tasks):
        train, scored = (
            embed_rows(preparer._backbone, preparer.tokenizer, rows, preparer.max_length)
            for rows in (task.train, task.validation)
        )
        mean, deviation = train.mean(0), train.std(0)
        model = LogisticRegression(max_iter=300)
        model.fit((train - mean) / deviation, task.train.labels)
        right = model.predict((scored - mean) / deviation) == task.validation.labels
        assert cell.probes[0][j] == pytest.approx(right.mean(), abs=1.01 / len(right))


@pytest.mark.slow
def test_a_shared_head_is_probed_on_all_its_tasks_so_far(world: Workspace) -> None:
    """Contradicting labels leave nothing for one probe to fit."""
    (cell,) = probed(world).run(scenario="opposite", epochs=8).cells
    assert cell.probes[1][0] == pytest.approx(1.0, abs=0.05)
    assert cell.probes[2] == pytest.approx([0.5, 0.5], abs=0.35)


@pytest.mark.slow
def test_stages_from_the_cache_have_the_same_probes(world: Workspace) -> None:
    probed(world)
    alone = world.run("alone", methods=["wise-ft"], scenario="three", epochs=1).cells[0]
    both = world.run("both", methods=["vanilla", "wise-ft"], scenario="three", epochs=1).cells
    assert [stage.cached for stage in both[1].stages] == [True, True, False]
    assert both[1].probes == alone.probes
    assert both[0].probes[0] == alone.probes[0]


def test_classes_without_rows_are_never_chosen() -> None:
    features = np.array([[0.0], [0.1], [1.0], [1.1]], np.float32)
    outputs = fit_classes(features, np.array([1, 1, 3, 3]), 5)(features)
    assert outputs.shape == (4, 5)
    assert list(outputs.argmax(1)) == [1, 1, 3, 3]
    assert (outputs[:, [0, 2, 4]] == -1e9).all()
    alone = fit_classes(features, np.array([2, 2, 2, 2]), 3)(features)
    assert list(alone.argmax(1)) == [2, 2, 2, 2]


def test_targets_are_fitted_by_ridge_regression() -> None:
    """On standardised features, with a penalty of weight 1."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(200, 3)).astype(np.float32) * np.float32([1.0, 5.0, 1.0]) + 2.0
    targets = (features @ np.array([1.0, -2.0, 0.0]) + 3.0).astype(np.float32)
    outputs = fit_regression(features, targets, 1)(features)
    assert outputs.shape == (200, 1)
    z = (features - features.mean(0)) / features.std(0)
    slope = np.linalg.solve(z.T @ z + np.eye(3), z.T @ (targets - targets.mean()))
    expected = z @ slope + targets.mean()
    assert outputs[:, 0] == pytest.approx(expected, abs=1e-3)
    assert np.abs(expected - targets).max() > 0.01  # which no penalty would give
