"""Plug-ins whose hooks raise, return nonsense, or change settings of the process."""

import inspect
import json
from pathlib import Path

import pytest
from hypothesis import strategies as st

import clbench
from faults.spoil import RUN, any_input, one_of, write_suite
from faults.verdict import Judge

HOOKS = {
    name: ", ".join(list(inspect.signature(hook).parameters)[1:])
    for name, hook in vars(clbench.Method).items()
    if inspect.isfunction(hook)
}
RAISES = {
    "raises ValueError": "raise ValueError('no')",
    "raises an own BaseException": "raise Own('no')",
    "raises GeneratorExit": "raise GeneratorExit",
    "raises StopIteration": "raise StopIteration",
    "raises MemoryError": "raise MemoryError",
    "raises an OSError without space": "raise OSError(28, 'No space left on device', '/dev/full')",
    "raises BrokenPipeError": "raise BrokenPipeError(32, 'Broken pipe')",
    "calls sys.exit(0)": "sys.exit(0)",
    "calls sys.exit with a text": "sys.exit('over')",
    "raises a text that raises": "raise Unreadable",
    "raises a megabyte": "raise ValueError('x' * 1_000_000)",
    "raises control characters": "raise ValueError('\\x1b[31m\\x07\\x00\\u202e')",
    "raises a hundred lines": "raise ValueError('line\\n' * 100)",
    "raises with notes": "e = ValueError(b'\\xff'); e.add_note('x\\ny'); raise e",
    "never stops calling itself": "return getattr(self, NAME)(*words)",
    "raises typer's Exit": "import typer; raise typer.Exit(5)",
    "raises an error of clbench": "raise clbench.ClbenchError('a\\nb\\x1b' + 'y' * 9_000)",
}
RETURNS = ("None", "-1", "[]", "'text'", "object()", "{}", "float('nan')", "[None]", "1 << 80",
           "iter([])", "torch.tensor([1.0, 2.0])", "torch.tensor(float('nan'))")  # fmt: skip
CHANGES = {
    "sets float64": "torch.set_default_dtype(torch.float64)",
    "sets the device": "torch.set_default_device('meta')",
    "turns gradients off": "torch.set_grad_enabled(False)",
    "seeds torch": "torch.manual_seed(1)",
    "seeds NumPy": "import numpy; numpy.random.seed(1)",
    "seeds random": "import random; random.seed(1)",
    "asks for warnings as errors": "import warnings; warnings.simplefilter('error')",
    "warns": "import warnings; warnings.warn('odd')",
    "leaves the folder": "import os; os.chdir('/')",
    "sets threads": "torch.set_num_threads(3)",
    "sets a signal": "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "prints": "print('hello'); print('hello', file=sys.stderr)",
}
HEAD = """
import sys
import torch
import clbench

class Own(BaseException):
    pass

class Unreadable(Exception):
    def __str__(self):
        raise ValueError('unreadable')
    __repr__ = __str__
"""
METHOD = '''
NAME = "{hook}"

@clbench.method("bad")
class Bad(clbench.Method):
    """Does harm in a hook."""
    def acts_in(self, index):
        return True
    def {hook}(self, {names}):
        words = [{names}]
        {body}
'''
SHIFT = '''
NAME = "build"

@clbench.shift("odd")
class Odd(clbench.Shift):
    """Builds nonsense."""
    tasks: list[str]
    def build(self, context):
        words = [context]
        {body}
'''


def _write(folder: Path, text: str) -> None:
    (folder / "bad.py").write_bytes((HEAD + text).encode("utf-8", "surrogateescape"))


@pytest.mark.slow
@any_input
def test_any_harm_in_a_method(judge: Judge, data: st.DataObject) -> None:
    folder, hook = judge.fresh(), one_of(data.draw, *HOOKS)
    kind = one_of(data.draw, "raises", "returns", "changes")
    if kind == "returns":
        what = body = f"return {one_of(data.draw, *RETURNS)}"
    else:
        what, body = one_of(data.draw, *(RAISES if kind == "raises" else CHANGES).items())
    if kind == "changes":  # then do as the hook does by default
        body += f"\n        return super().{hook}({HOOKS[hook]})"
    _write(folder, METHOD.format(hook=hook, body=body, names=HOOKS[hook]))
    refused = kind == "raises" and hook not in ("state", "load_state")
    judge.answer(f"{hook} {what}", PLUGIN, dry=True, refused=refused)
    cells = [at / "out/cells/pair--vanilla--seed0.json" for at in (folder, judge.templates.runs)]
    if cells[0].exists():  # vanilla runs after the bad method
        mine, vanilla = (json.loads(path.read_text()) for path in cells)
        assert mine["R"] == vanilla["R"], f"{hook} {what}: {mine['status']} {mine['reason']}"


@any_input
def test_any_harm_in_a_shift(judge: Judge, data: st.DataObject) -> None:
    body = one_of(data.draw, *RAISES.values(), *(f"return {value}" for value in RETURNS))
    folder = judge.fresh()
    _write(folder, SHIFT.format(body=body))
    write_suite(folder, scenario=[{"name": "pair", "shift": "odd", "tasks": ["mood", "thing"]}])
    judge.answer(f"a shift: {body}", [*RUN, "--plugin", "bad.py"], dry=True, refused=True)


PLUGIN = [*RUN, "--plugin", "bad.py", "--methods", "bad,vanilla"]
CLASS = "class A(clbench.Method):\n    'A.'\n"
BAD = f"@clbench.method('bad')\n{CLASS}"
FILES = {
    "a syntax error": "def (",
    "a NUL": "x = 1\0",
    "not UTF-8": "x = '\udcff'",
    "a number as a name": f"@clbench.method(3)\n{CLASS}",
    "an empty name": f"@clbench.method('')\n{CLASS}",
    "a name with an escape": f"@clbench.method('a\\x1b')\n{CLASS}",
    "a long name": f"@clbench.method('a' * 5_000)\n{CLASS}",
    "no parentheses": f"@clbench.method\n{CLASS}",
    "a function as a method": "@clbench.method('bad')\ndef bad(): pass\n",
    "no subclass": "@clbench.method('bad')\nclass A:\n    'A.'\n",
    "a setting of no type": f"{BAD}    x: nope = 1\n",
    "a wrong default": f"{BAD}    x: int = 'a'\n",
    "an __init__ that raises": f"{BAD}    def __init__(self, **k): raise Own('no')\n",
    **{f"{what} at import": body for what, body in RAISES.items() if "NAME" not in body},
}


@pytest.mark.slow
@pytest.mark.parametrize("what", FILES)
def test_a_plugin_that_is_refused(judge: Judge, what: str) -> None:
    _write(judge.fresh(), FILES[what])
    judge.answer(what, PLUGIN, dry=True, refused=True)
