from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from clbench.core.errors import PluginError
from clbench.suite.plugins import load_plugin, load_plugins, source_digest

METHOD = """from __future__ import annotations

import clbench


@clbench.method("{name}")
class Own(clbench.Method):
    strength: float = {strength}
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def error(text: str, name: str = "p.py") -> str:
    Path(name).write_text(text)
    with pytest.raises(PluginError) as raised:
        load_plugin(name)
    message = str(raised.value)
    assert "\n" not in message
    return message


def test_a_plugin_registers_and_may_be_loaded_again() -> None:
    from clbench.methods.base import METHODS

    Path("own.py").write_text(METHOD.format(name="plug-a", strength=0.5))
    first = load_plugin("own.py")
    assert METHODS.where("plug-a") == f"{first.module}:Own"
    assert METHODS.get("plug-a")().strength == 0.5
    assert source_digest(METHODS.where("plug-a")) == first.digest
    assert load_plugins(["own.py", Path("own.py").resolve()]) == (first,)


def test_an_edited_plugin_is_loaded_again() -> None:
    from clbench.methods.base import METHODS

    Path("own.py").write_text(METHOD.format(name="plug-b", strength=0.5))
    first = load_plugin("own.py")
    Path("own.py").write_text(METHOD.format(name="plug-b", strength=0.25))
    second = load_plugin("own.py")
    assert second.module == first.module
    assert second.digest != first.digest
    assert METHODS.get("plug-b")().strength == 0.25


def test_two_plugins_of_one_file_name(tmp_path: Path) -> None:
    from clbench.methods.base import METHODS

    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "own.py").write_text(METHOD.format(name=f"plug-{folder}", strength=1))
    first, second = load_plugins(["one/own.py", "two/own.py"])
    assert first.module != second.module
    where = [METHODS.where(name) for name in ("plug-one", "plug-two")]
    assert where == [f"{first.module}:Own", f"{second.module}:Own"]


def test_future_imports_of_clbench_do_not_leak_into_plugins() -> None:
    # `from __future__ import annotations` of clbench must not reach into the plug-in.
    text = METHOD.format(name="plug-c", strength=1).replace(
        "from __future__ import annotations\n", ""
    )
    Path("own.py").write_text(
        f"{text}\n\ndef f(x: int) -> None: ...\n\n\nSEEN = f.__annotations__\n"
    )
    assert sys.modules[load_plugin("own.py").module].SEEN["x"] is int


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import no_such_module\n", "p.py:1: ModuleNotFoundError: No module named 'no_such_mod"),
        ("x = 1\ndef f(:\n", "p.py:2: SyntaxError: invalid syntax"),
        ("def f():\n    raise ValueError('a\\nb')\n\n\nf()\n", "p.py:2: ValueError: a b"),
        ("import json\n\njson.loads('{')\n", "p.py:3: JSONDecodeError: "),
        ("import sys\nsys.exit(3)\n", "p.py:2: SystemExit: 3"),
        ("raise KeyError\n", "p.py:1: KeyError"),
        ("x = 1\n", "p.py: registers nothing. Register one of method, shift"),
        (
            "import clbench\n@clbench.method('plug-d')\nclass A: ...\n",
            "not a subclass of clbench.M",
        ),
        (METHOD.format(name="vanilla", strength=1), "method 'vanilla' is registered twice: by"),
    ],
)
def test_an_error_names_the_line(text: str, expected: str) -> None:
    before = set(sys.modules)
    assert expected in error(text)
    leftover = {name for name in set(sys.modules) - before if name.startswith("clbench_plugin_p_")}
    assert leftover == set() or "registers no" in expected


def test_files_that_are_not_plugins(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"q\.py: there is no such file"):
        load_plugin("q.py")
    with pytest.raises(PluginError, match=r"is a folder"):
        load_plugin(tmp_path)
    Path("t.txt").write_text("")
    with pytest.raises(PluginError, match=r"t\.txt: is not a \.py file"):
        load_plugin("t.txt")


def test_digest_of_code_that_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "own_package_seven"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('must not be imported')\n")
    (package / "deep.py").write_text("class A: ...\n")
    first = source_digest("own_package_seven.deep:A")
    assert first == source_digest("own_package_seven.deep:B")
    (package / "deep.py").write_text("class A: x = 1\n")
    assert source_digest("own_package_seven.deep:A") != first
    assert "own_package_seven" not in sys.modules
    assert source_digest("clbench.methods.base:Vanilla") is None
    with pytest.raises(PluginError, match=r"there is no module 'own_package_seven\.none'"):
        source_digest("own_package_seven.none:A")


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("raise SystemExit(0)", "p.py:2: SystemExit: 0"),
        ("raise GeneratorExit", "p.py:2: GeneratorExit"),
        ("raise type('Odd', (BaseException,), {'__str__': lambda e: 1 / 0})", "p.py:2: Odd: (its"),
        ("raise ValueError('\\x1b[2Jcleared' + 'x' * 10**6)", "ValueError: \\x1b[2Jclearedxxx"),
        (
            "@clbench.method(3)\nclass M(clbench.Method): ...",
            "characters, got 3. Write @clbench.method(",
        ),
        ("@clbench.method\nclass M(clbench.Method): ...", "characters, got <class"),
        (
            "@clbench.metric(None)\ndef f(a, b): ...",
            "characters, got nothing. Write @clbench.metric(",
        ),
    ],
)
def test_whatever_an_import_raises_is_one_short_line(statement: str, text: str) -> None:
    message = error(f"import clbench\n{statement}\n")
    assert text in message
    assert len(message) < 3_000


def test_an_import_cannot_change_the_defaults_of_torch() -> None:
    import torch

    text = "import os, torch\ntorch.set_default_dtype(torch.float64)\nos.environ['OWN'] = '1'\n"
    Path("own.py").write_text(text + METHOD.format(name="plug-state", strength=1)[34:])
    try:
        load_plugin("own.py")
        assert torch.get_default_dtype() == torch.float32
        assert os.environ["OWN"] == "1"  # modules that it imports may read this later
    finally:
        os.environ.pop("OWN", None)
