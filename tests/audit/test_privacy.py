"""Nothing that is published says who made it, where, or on which machine."""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from clbench.cli.app import main
from clbench.models.locate import TINY, title_of, titles_of
from clbench.report.drawing import draw

USER, SECRET = "zqxannezqx", "zqxsecretzqx"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home" / USER
    (folder / "models").mkdir(parents=True)
    monkeypatch.chdir(folder)
    for name, value in (("HOME", str(folder)), ("USER", USER), ("HF_TOKEN", SECRET)):
        monkeypatch.setenv(name, value)
    return folder


def private(*folders: Path) -> Iterator[str]:
    """Yield what is private in the files of folders, with its file."""
    words = {USER, SECRET, str(Path.home().parent), str(TINY.parents[2])}
    words |= {platform.node()} if len(platform.node()) > 6 else set()
    for path in (path for folder in folders for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        yield from (f"{word} in {path.name}" for word in words if word.encode() in content)


def test_models_are_called_by_the_last_part_of_their_path(home: Path) -> None:
    (home / "models" / "bert").mkdir()
    assert title_of(str(home / "models" / "bert")) == "bert"
    assert title_of("models/bert/") == title_of("~/models/bert") == "bert"
    assert title_of(str(home / "gone" / "bert")) == title_of("../gone/x/bert") == "bert"
    assert title_of("acme/bert") == "acme/bert"  # on the hub
    assert title_of("tiny") == "tiny"


def test_models_of_one_name_are_numbered() -> None:
    names = ("a/x/bert", "b/x/bert", "acme/bert", "c/x/bert")
    assert titles_of(names) == ["bert", "bert (2)", "acme/bert", "bert (3)"]


def test_figures_say_neither_when_nor_by_what_they_were_made() -> None:
    files = draw(Figure(), ("png", "svg", "pdf"))
    for kind, content in files.items():
        for word in (b"Matplotlib", b"matplotlib.org", b"dc:date", b"CreationDate", b"Software"):
            assert word not in content, (kind, word)


@pytest.mark.slow
def test_audits_and_exports_hold_nothing_private(home: Path, copy: Callable[..., str]) -> None:
    base, tuned = home / "models" / "base", home / "models" / "tuned"
    shutil.copytree(copy(), base)
    shutil.copytree(
        copy(lambda model: model.base_model.embeddings.word_embeddings.weight.mul_(1.2)), tuned
    )
    for path in (*tuned.glob("token*"), *tuned.glob("vocab*")):
        path.unlink()  # so that a note names the model
    config = json.loads((base / "config.json").read_text())
    config |= {"_name_or_path": str(base), "auto_map": {"AutoModel": "modeling_own.Own"}}
    (base / "config.json").write_text(json.dumps(config))
    (home / "corpus.txt").write_text("".join(f"The text has number {n}.\n" for n in range(600)))
    options = ["--tasks", "synthetic/sentiment", "--rows", "60", "--texts", "30"]
    options += ["--corpus", str(home / "corpus.txt"), "--out", str(home / "audit"), "--with-texts"]
    assert main(["audit", str(base), str(tuned), *options]) == 0
    stored = json.loads((home / "audit" / "audit.json").read_text("utf-8"))
    assert (stored["base"], stored["models"][0]["model"]) == ("base", "tuned")
    assert any(note.startswith("tuned has no tokenizer") for note in stored["models"][0]["notes"])
    for to in ("every-eval-ever", "model-card", "github"):
        assert main(["export", str(home / "audit"), "--to", to]) == 0
    mended = ["--keep", "synthetic/acceptability", "--learn", "synthetic/sentiment", "--force"]
    mended += ["--alpha", ".5", "--rows", "60", "--out", str(home / "mended")]
    assert main(["mend", str(base), str(tuned), *mended]) == 0
    assert (home / "mended" / "README.md").is_file()
    assert [*private(home / "audit", home / "mended")] == []
