"""Models for audits: copies of the built-in ones, changed by hand."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification

from clbench.models.locate import TINY

Change = Callable[[torch.nn.Module], None]


@pytest.fixture(autouse=True, scope="package")
def _short() -> Iterator[None]:
    """Fit missing heads, and choose mixtures, on less than users get."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clbench.audit.language.HEAD_TEXTS", 64)
        patch.setattr("clbench.audit.language.HEAD_STEPS", 8)
        patch.setattr("clbench.audit.mend.SWEEP_ROWS", 80)
        yield


@pytest.fixture(scope="session")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Return a function that saves a changed copy of the built-in model and returns its folder."""

    def save(change: Change = lambda model: None, *, classes: tuple[str, ...] = ()) -> str:
        folder = tmp_path_factory.mktemp("model")
        shutil.copytree(TINY, folder, dirs_exist_ok=True)
        if classes:
            torch.manual_seed(0)
            names = dict(enumerate(classes))
            model = AutoModelForSequenceClassification.from_pretrained(
                TINY, id2label=names, label2id={name: i for i, name in names.items()}
            )
        else:
            model = AutoModelForMaskedLM.from_pretrained(TINY)
        with torch.no_grad():
            change(model)
        model.save_pretrained(folder)
        return str(folder)

    return save
