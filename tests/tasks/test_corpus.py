from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clbench.core.errors import DataError
from clbench.suite.options import RunOptions
from clbench.suite.plan import make_plan
from clbench.suite.read import read_suite
from clbench.tasks.corpus import HUB_CONFIG, HUB_NAME, corpus_identity, read_corpus, resolve_corpus

SUITE = """
methods = ["vanilla"]
[protocol]
corpus = "text.txt"
[[scenario]]
shift = "dataset"
tasks = ["synthetic/sentiment", "synthetic/paraphrase"]
"""
TEXT = "= A heading =\n\nThe first line has some words.\nAnd so does the second line.\nshort\n"


def test_texts_are_the_long_lines_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text(TEXT + "A third line that is long enough.\n", encoding="utf-8")
    every = read_corpus(str(file), 10)
    assert every == [
        "The first line has some words.",
        "And so does the second line.",
        "A third line that is long enough.",
    ]
    assert read_corpus(str(file), 2, seed=1) == read_corpus(str(file), 2, seed=1)
    assert set(read_corpus(str(file), 2)) < set(every)


def test_a_tenth_of_a_file_is_held_out(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    lines = [f"This is line number {i} of them." for i in range(1000)]
    file.write_text("\n".join(lines), encoding="utf-8")
    train, held_out = (set(read_corpus(str(file), 1000, held_out=h)) for h in (False, True))
    assert not train & held_out
    assert train | held_out == set(lines)
    assert 70 < len(held_out) < 130
    file.write_text(lines[0], encoding="utf-8")
    with pytest.raises(DataError, match=r"is empty\. Give a file with more lines"):
        [read_corpus(str(file), 5, held_out=held) for held in (False, True)]


def test_the_built_in_text_has_a_held_out_part_and_an_end() -> None:
    assert len(read_corpus("built-in", 20)) == 20
    assert len(read_corpus("built-in", 10**6)) == 6000
    assert len(read_corpus("built-in", 10**6, held_out=True)) == 2000
    assert not set(read_corpus("built-in", 500)) & set(read_corpus("built-in", 500, held_out=True))
    assert corpus_identity("built-in") == corpus_identity("built-in")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "5 words or more"),
        (b"\n one two \n", "no line has 5"),
        (b"\xff\xfe\x00abc", "cannot be read .*Save it as UTF-8, or name"),
    ],
)
def test_a_file_without_usable_text_is_an_error(tmp_path: Path, content: bytes, text: str) -> None:
    file = tmp_path / "text.txt"
    file.write_bytes(content)
    with pytest.raises(DataError, match=text):
        corpus_identity(str(file))


def table(path: Path, **columns: list[Any]) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path)
    return str(path)


def test_texts_of_a_parquet_table(tmp_path: Path) -> None:
    first, second = "This is the first text here.", "And this is the second one."
    file = table(
        tmp_path / "a.parquet",
        id=["one two three four five six"] * 3,
        text=[f" {first}\nshort\n{second}\n", None, first + " More of it."],
    )
    assert read_corpus(file, 10) == [first, second, first + " More of it."]
    pair = table(tmp_path / "b.PQ", n=[1, 2], one=[first, "no"], two=[second, second + " Again."])
    assert read_corpus(pair, 10) == [first, second, second + " Again."]
    assert corpus_identity(file) != corpus_identity(pair)
    numbers = table(tmp_path / "c.parquet", n=[1, 2], m=[3, 4])
    with pytest.raises(DataError, match="no line has 5 words"):
        corpus_identity(numbers)
    with pytest.raises(DataError, match="no line has 5 words"):
        corpus_identity(table(tmp_path / "d.parquet", text=["short", None]))
    broken = tmp_path / "e.parquet"
    broken.write_bytes(Path(file).read_bytes()[:-9])
    with pytest.raises(DataError, match="cannot be read"):
        corpus_identity(str(broken))


def test_a_missing_file_is_named_with_its_key(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"--corpus 'no.txt': there is no such file"):
        resolve_corpus("no.txt", tmp_path, "--corpus")
    with pytest.raises(DataError, match="is a folder"):
        resolve_corpus(".", tmp_path, "--corpus")


def test_a_suite_names_its_corpus_and_the_recipe_its_content(tmp_path: Path) -> None:
    suite, file = tmp_path / "s.toml", tmp_path / "text.txt"
    suite.write_text(SUITE, encoding="utf-8")
    with pytest.raises(DataError, match=r"\[protocol\] corpus 'text.txt'"):
        make_plan(read_suite(suite))
    file.write_text(TEXT, encoding="utf-8")
    first = make_plan(read_suite(suite))
    assert first.protocol.corpus == str(file.resolve())
    other = tmp_path / "elsewhere.txt"
    other.write_text(TEXT, encoding="utf-8")
    same = make_plan(read_suite(suite), RunOptions(corpus=other))
    assert same.cells[0].fingerprint == first.cells[0].fingerprint
    file.write_text(TEXT + "One more line of five words.\n", encoding="utf-8")
    changed = make_plan(read_suite(suite))
    assert changed.cells[0].fingerprint != first.cells[0].fingerprint
    built_in = make_plan(read_suite(suite), RunOptions(corpus="built-in"))
    assert len({p.cells[0].fingerprint for p in (first, changed, built_in)}) == 3


def test_wiki40b_gives_the_first_paragraph_of_each_article(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    calls: list[Any] = []
    article = "\n_START_ARTICLE_\nA\n_START_SECTION_\nB\n_START_PARAGRAPH_\n{}_NEWLINE_Then more.\n"

    def load(*place: Any, **options: Any) -> list[dict[str, str]]:
        calls.append((place, options))
        texts = ("Some words of the first article.", "Few.", "And these are of the third one.")
        return [{"text": article.format(text)} for text in texts]

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert read_corpus("wiki40b/en", 5) == [
        "Some words of the first article.",
        "And these are of the third one.",
    ]
    assert calls[0][0] == (HUB_NAME, HUB_CONFIG)
    assert calls[0][1]["streaming"] is True
    read_corpus("wiki40b/en", 5, held_out=True)
    assert [options["split"] for _, options in calls] == ["train", "validation"]

    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route\nat all")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(DataError, match=r"\(no route\)\. Check the network, or give corpus='FILE'"):
        read_corpus("wiki40b/en", 5)
