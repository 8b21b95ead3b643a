from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from clbench.core.errors import SuiteError, UnknownNameError
from clbench.suite import read as reading
from clbench.suite.read import Suite, packaged_files, raise_errors, read_suite
from clbench.suite.schema import derived_name
from clbench.training.protocol import Protocol

GOOD = """name = "mine"
methods = ["vanilla"]
seeds = [0, 1]

[protocol]
epochs = 2

[[scenario]]
shift = "dataset"
tasks = ["glue/sst2", "glue/mrpc"]
"""

Read = Callable[[str | bytes], Suite]
Errors = Callable[[str | bytes], str]


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Read:
    monkeypatch.chdir(tmp_path)

    def of(text: str | bytes) -> Suite:
        Path("mine.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_suite("mine.toml")

    return of


@pytest.fixture
def error(read: Read) -> Errors:
    def of(text: str | bytes) -> str:
        with pytest.raises(SuiteError) as raised:
            read(text)
        message = str(raised.value)
        assert "\n" not in message
        assert message.startswith("mine.toml")
        return message

    return of


def test_a_suite_file_is_read_whole(read: Read, tmp_path: Path) -> None:
    suite = read(
        """methods = ["vanilla", "my/ewc.toml"]
[protocol]
model = "distilbert-base-uncased"
betas = [0.9, 0.98]
lr = 1

[task.urgent]
train = "data/urgent.csv"
validation = "data/urgent-dev.csv"
text = ["subject", "body"]
label = "priority"

[[scenario]]
name = "first"
shift = "dataset"
tasks = ["glue/sst2", "urgent"]
note = "why not"

[[scenario]]
shift = "sentence-length"
task = "urgent"
unit = "words"
"""
    )
    file = suite.file
    assert suite.name == "mine"  # after the file
    assert suite.base == tmp_path
    assert file.seeds == [0]
    assert file.protocol == Protocol(model="distilbert-base-uncased", betas=(0.9, 0.98), lr=1.0)
    assert list(file.task["urgent"].text) == ["subject", "body"]
    assert suite.scenario_names == ["first", "urgent-length"]
    assert file.scenario[0].note == "why not"
    assert file.scenario[0].settings == {"tasks": ["glue/sst2", "urgent"]}
    assert file.scenario[1].settings == {"task": "urgent", "unit": "words"}
    assert file.scenario[1].task_names == ("urgent",)


@pytest.mark.parametrize(
    ("shift", "settings", "name"),
    [
        ("dataset", {"tasks": ["glue/sst2", "glue/mrpc"]}, "sst2-mrpc"),
        ("dataset", {"tasks": ["glue/rte", "urgent", "glue/rte"]}, "rte-urgent-rte"),
        ("sentence-length", {"task": "glue/qnli", "unit": "words"}, "qnli-length"),
        ("embedding-cluster", {"task": "glue/sst2", "k": 3}, "sst2-clusters"),
        ("reverse", {"tasks": ["glue/sst2", "a"]}, "sst2-a-reverse"),
        ("dataset", {}, None),
        ("dataset", {"tasks": []}, None),
        ("dataset", {"tasks": ["glue/sst2", 3]}, None),
        ("sentence-length", {"task": "my task"}, "my-task-length"),
        ("sentence-length", {"task": "(c++) -- x"}, "c++-x-length"),
        ("dataset", {"tasks": ["???"]}, None),
    ],
)
def test_derived_names(shift: str, settings: dict[str, object], name: str | None) -> None:
    assert derived_name(shift, settings) == name


def test_byte_order_mark_and_windows_line_ends_are_read(read: Read) -> None:
    assert read(b"\xef\xbb\xbf" + GOOD.encode()).name == "mine"
    assert read(GOOD.replace("\n", "\r\n")).scenario_names == ["sst2-mrpc"]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("seeds", "seads", "mine.toml: line 3, column 1: seads: unknown key. Did you mean 'seeds'"),
        ("epochs = 2", "epoch = 2", "[protocol] epoch: unknown key. Did you mean 'epochs'"),
        ("epochs = 2", 'epochs = "2"', "[protocol] epochs: must be a whole number, got '2'."),
        ("epochs = 2", "epochs = 2.0", "[protocol] epochs: must be a whole number, got 2.0."),
        ("epochs = 2", "epochs = true", "[protocol] epochs: must be a whole number, got true."),
        ("epochs = 2", "epochs = 0", "[protocol] epochs: must be greater than 0, got 0."),
        ("epochs = 2", "warmup = 1.5", "[protocol] warmup: must be less than 1, got 1.5."),
        ("epochs = 2", "lr = inf", "[protocol] lr: must be a finite number, got inf."),
        ("epochs = 2", "lr = nan", "[protocol] lr: must be a finite number, got nan."),
        ("epochs = 2", "model = 2020-01-01", "[protocol] model: must not be a date or time"),
        ("epochs = 2", "betas = [0.9]", "[protocol] betas item 2: is missing."),
        ("epochs = 2", 'precision = "bf61"', "got 'bf61'. Did you mean 'bf16'?"),
        (
            "epochs = 2",
            'task_epochs = {"glue/sst2" = 0}',
            '[protocol.task_epochs] "glue/sst2": must',
        ),
        ("[protocol]\nepochs = 2", "protocol = 3", "protocol: must be a table, got 3."),
        ("[0, 1]", "0", "seeds: must be a list in [brackets], got 0."),
        ("[0, 1]", "[]", "seeds: must have at least 1 item."),
        ("[0, 1]", "[0, -1]", "seeds item 2: must be greater than or equal to 0, got -1."),
        ("[0, 1]", "[0, 1, 0]", "seeds item 3: 0 repeats number 1."),
        ('["vanilla"]', '"vanilla"', "methods: must be a list in [brackets], got 'vanilla'."),
        ('["vanilla"]', '["a", "b", "b"]', "methods item 3: 'b' repeats number 2."),
        ('methods = ["vanilla"]\n', "", "methods: is missing."),
        ('name = "mine"', 'name = "../mine"', "name: a name consists of at most 100 letters"),
        ("[[scenario]]", "[scenario]", "scenario: must be a table with [[two"),
        (
            "shift = ",
            "shfit = ",
            "[[scenario]] 1 'sst2-mrpc' shift: is missing.",
        ),
        (
            "tasks = ",
            "taks = ",
            "[[scenario]] 1: has no `name`, and no valid `task` or `tasks` to derive one from.",
        ),
        ("epochs = 2", "x = = 2", "is not valid TOML: Invalid value (at line 6, column 5)."),
        ("epochs = 2", "x = 1\nx = 2", "is not valid TOML: Cannot overwrite a value (at line 7"),
    ],
)
def test_an_error_names_key_and_remedy(error: Errors, old: str, new: str, expected: str) -> None:
    assert old in GOOD
    assert expected in error(GOOD.replace(old, new))


def test_a_bad_name_of_a_file_is_said_to_be_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "my suite.toml"
    text = GOOD.replace('name = "mine"\n', "")
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SuiteError, match=r"'my suite', the file's\. Rename .* a `name`\.$"):
        read_suite(path)
    path.write_text(f'name = "mine"\n{text}', encoding="utf-8")
    assert read_suite(path).name == "mine"


def test_errors_in_repeated_tables(error: Errors) -> None:
    again = GOOD + '[[scenario]]\nshift = "dataset"\ntasks = ["x/sst2", "y/mrpc"]\n'
    assert "[[scenario]] 2 'sst2-mrpc': 'sst2-mrpc' repeats number 1." in error(again)
    named = GOOD.replace("shift", 'name = "a--b"\nshift')
    assert "[[scenario]] 1 'a--b' name: a name consists of at most 100 letters" in error(named)
    own = (
        GOOD + '[task."my task"]\ntrain = "a.csv"\nvalidation_fraction = 2\ntext = "t"\nlabl = 1\n'
    )
    message = error(own)
    assert '[task."my task"] validation_fraction: must be less than 1, got 2.' in message
    assert '[task."my task"] label: is missing.' in message
    assert "[task.\"my task\"] labl: unknown key. Did you mean 'label'" in message
    neither = GOOD + '[task.u]\ntrain = "a.csv"\ntext = "t"\nlabel = "l"\n'
    assert "[task.u]: give either validation = FILE" in error(neither)


def test_errors_of_synthetic_task_tables(error: Errors, read: Read) -> None:
    suite = read(GOOD + '[task.noisy]\nsynthetic = "sentiment"\nlabel_noise = 0.2\n')
    assert suite.scenario_names == ["sst2-mrpc"]
    wrong = '[task.n]\nsynthetic = "sentimant"\ntrain = "a.csv"\nlabel_noise = 2\nnoise = 1\n'
    message = error(GOOD + wrong)
    assert "got 'sentimant'. Did you mean 'sentiment' or" in message
    assert "[task.n] train: must be a whole number, got 'a.csv'." in message
    assert "[task.n] label_noise: must be less than or equal to 1, got 2." in message
    assert "[task.n] noise: unknown key. Did you mean 'label_noise'" in message
    mixed = error(GOOD + '[task.n]\nsynthetic = "qa"\nmetrics = ["f1"]\n')
    own = "a table with a key `synthetic`"
    assert f"[task.n] metrics: does not belong in {own}." in mixed
    other = GOOD + '[task.n]\ntrain = "a.csv"\nvalidation = "b.csv"\ntext = "t"\nlabel = "l"\n'
    assert "[task.n] seed: does not belong in a table of files." in error(other + "seed = 1\n")


def test_all_errors_of_a_file_are_reported_together(error: Errors) -> None:
    text = GOOD.replace("seeds", "seads").replace("epochs = 2", "epochs = 0\nlr = 'x'")
    message = error(text.replace('"vanilla"', '"a", "a"'))
    assert message.startswith("mine.toml: 4 errors: (1) ")
    for part in ("[protocol] epochs", "[protocol] lr", "seads: unknown", "methods item 2"):
        assert part in message


def test_errors_of_a_file_are_raised_together(tmp_path: Path) -> None:
    raise_errors(tmp_path, [])
    with pytest.raises(SuiteError, match=r": a: is missing\.$"):
        raise_errors(tmp_path / "x.toml", ["a: is missing"])
    with pytest.raises(SuiteError, match=r"2 errors: \(1\) a: is missing\. \(2\) b\?$"):
        raise_errors(tmp_path / "x.toml", ["a: is missing", "b?"])


def test_long_lists_of_errors_are_cut(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match=r"20 errors: \(1\) e0\. .*\(8\) e7\. And 12 more\.$"):
        raise_errors(tmp_path / "a.toml", [f"e{number}" for number in range(20)])


PLACED = """seeds = [0]
methods = [
  "vanilla",
  ["lr"]
]

[protocol]  # not [question]
  epochs = "two"
task_steps = { a = 1, b = "x" }

  [task."a.b"]
  train = 3

[[scenario]]
name = "a"
shift = "dataset"
[[scenario]]
name = "b"
shift = "dataset"
note = 7
[question]
scores = [
"p_o",
"p_x",
]
"""


def test_errors_name_line_and_column(error: Errors) -> None:
    message = error(PLACED)
    for line, column, text in (
        (2, 1, "methods item 2: "),
        (8, 3, "[protocol] epochs: must be a whole number, got 'two'"),
        (9, 1, "[protocol.task_steps] b: "),
        (12, 3, '[task."a.b"] train: '),
        (20, 1, "[[scenario]] 2 'b' note: "),
        (22, 1, "[question] scores item 2: "),
    ):
        assert f"line {line}, column {column}: {text}" in message
    missing = error(GOOD.replace('shift = "dataset"', "x = 1") + "[[scenario]]\n")
    assert "line 8, column 1: [[scenario]] 1 'sst2-mrpc' shift: is missing" in missing
    assert "line 11, column 1: [[scenario]] 2 shift: is missing" in missing
    # A text may look like a table, and a table may stand for several scenarios.
    text = "description = '''\n[protocol]\n'''\n" + GOOD.replace("= 2", "= 0")
    assert error(text).startswith("mine.toml: [protocol] epochs: must be")
    orders = 'name = "s"\nshift = "sequence"\norders = { a = ["x", "y"], b = ["y", "x"] }'
    text = f'{GOOD}\n[[scenario]]\n{orders}\n[[scenario]]\nname = "t"\nshift = 3\n'
    assert error(text).startswith("mine.toml: [[scenario]] 4 't' shift: must be")


def test_bytes_that_are_not_utf8_are_located(error: Errors) -> None:
    message = error(GOOD.encode() + b"# gr\xfcn\n")
    assert message.startswith("mine.toml, line 11: is not UTF-8 but perhaps WINDOWS-1252. Save it")
    assert "is not valid TOML" in error(b"\x00\x01")


def test_an_empty_file_names_the_missing_keys(error: Errors) -> None:
    assert error("") == "mine.toml: 2 errors: (1) methods: is missing. (2) scenario: is missing."


def test_missing_files_and_folders(read: Read, tmp_path: Path) -> None:
    read(GOOD)
    with pytest.raises(SuiteError, match=r"^m\.toml: there is no such file\. .*: mine\.toml\.$"):
        read_suite("m.toml")
    with pytest.raises(SuiteError, match=r"is a folder\. Give one of its files: mine\.toml\."):
        read_suite(tmp_path)
    with pytest.raises(UnknownNameError, match=r"For the file here write mine\.toml\."):
        read_suite("mine")
    Path("folder").mkdir()
    with pytest.raises(UnknownNameError, match=r"write \./folder\."):
        read_suite("folder")


def test_an_unknown_suite_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"Unknown suite 'quik'\. Did you mean 'quick'\?"):
        read_suite("quik")


def test_the_folder_inside_an_installed_package_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "clbench"
    (package / "_scenarios").mkdir(parents=True)
    (tmp_path / "scenarios").mkdir()
    (package / "_scenarios" / "inside.toml").write_text(GOOD)
    (tmp_path / "scenarios" / "beside.toml").write_text(GOOD)
    monkeypatch.setattr(reading, "PACKAGE", package)
    assert list(packaged_files("scenarios")) == ["inside"]
    assert read_suite("inside").name == "mine"
    (package / "_scenarios" / "inside.toml").unlink()
    (package / "_scenarios").rmdir()
    assert list(packaged_files("scenarios")) == ["beside"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("epochs = 2", f"epochs = {'9' * 5000}", "is not valid TOML: Exceeds the limit"),
        ("epochs = 2", f"limit = 0x{'f' * 5000}", "is not valid TOML: Exceeds the limit"),
        ("epochs = 2", f"limit = {2**63}", "[protocol] limit: must fit into 64 bits"),
        ("[protocol]", f"{'a.' * 3000}a = 1\n[protocol]", "lists are nested too deep"),
        ("epochs = 2", "curve_points = 1000000000000", "must be less than or equal to 1000000000"),
        (
            "[protocol]",
            '[task."a[b]"]\nsynthetic = "qa"\n[protocol]',
            "task: 'a[b]' cannot be a name: brackets mark the parts of a task",
        ),
        (
            "[protocol]",
            f'[task.{"x" * 3000}]\nsynthetic = "qa"\n[protocol]',
            "task: a name must be a text of 1 to 100 printable characters, got 'xxx",
        ),
        (
            "[protocol]",
            '[task."a\\nb"]\nsynthetic = "qa"\n[protocol]',
            r"task: a name must be a text of 1 to 100 printable characters, got 'a\nb'.",
        ),
    ],
)
def test_numbers_and_names_that_cannot_be_used(
    error: Errors, old: str, new: str, message: str
) -> None:
    assert message in error(GOOD.replace(old, new))


def test_a_setting_of_a_task_that_is_joined_with_others_is_refused(
    read: Read, error: Errors
) -> None:
    joined = GOOD.replace('"dataset"', '"class-incremental"\nsteps = 2')
    text = joined.replace("epochs = 2", 'task_epochs = { "glue/sst2" = 9 }')
    message = error(text)
    assert '[protocol] task_epochs."glue/sst2": class-incremental joins this task' in message
    assert message.endswith("Remove it, and set epochs for all tasks.")
    read(joined)
    read(text + '[[scenario]]\nshift = "sentence-length"\ntask = "glue/sst2"\n')
