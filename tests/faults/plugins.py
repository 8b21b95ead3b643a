"""Plug-ins whose hooks raise, return nonsense, or change what belongs to the whole process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

from faults.cases import RUN, Case

HOOKS = {
    "acts_in": "index",
    "check_protocol": "protocol",
    "check_tasks": "tasks",
    "setup": "context",
    "before_stage": "stage",
    "training_data": "stage",
    "phases": "stage",
    "before_phase": "stage",
    "parameter_groups": "stage",
    "optimizer": "stage, groups",
    "schedule": "stage, optimizer",
    "before_step": "stage",
    "loss": "stage, batch",
    "penalty": "stage",
    "edit_gradients": "stage",
    "after_step": "stage",
    "after_stage": "stage",
    "scoring": "task",
    "state": "",
}
RAISES = {
    "raises ValueError": "raise ValueError('no')",
    "raises BaseException": "raise BaseException('no')",
    "raises an own BaseException": "raise Own('no')",
    "raises GeneratorExit": "raise GeneratorExit",
    "raises StopIteration": "raise StopIteration",
    "raises MemoryError": "raise MemoryError",
    "raises an OSError without space": "raise OSError(28, 'No space left on device', '/dev/full')",
    "raises BrokenPipeError": "raise BrokenPipeError(32, 'Broken pipe')",
    "calls sys.exit(0)": "sys.exit(0)",
    "calls sys.exit(3)": "sys.exit(3)",
    "calls sys.exit with a text": "sys.exit('over')",
    "raises a text that raises": "raise Unreadable",
    "raises a megabyte": "raise ValueError('x' * 1_000_000)",
    "raises control characters": "raise ValueError('\\x1b[31m\\x07\\x00\\u202e')",
    "raises a hundred lines": "raise ValueError('line\\n' * 100)",
    "raises with notes": "e = ValueError(b'\\xff'); e.add_note('x\\ny'); raise e",
    "never stops calling itself": "return getattr(self, NAME)(*words)",
    "breaks an assertion": "assert False",
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
    "prints": "print('hello'); print('hello', file=sys.stderr)",
    "changes a class of torch": "torch.nn.Linear.forward = lambda self, x: x * 0",
    "sets a signal": "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "sets the locale": "import locale; locale.setlocale(locale.LC_ALL, 'C')",
    "replaces time": "import time; time.perf_counter = lambda: 0.0",
}
OPEN = {"warns", "prints", "changes a class of torch", "replaces time", "sets a signal"}
"""What is not undone, or does no harm to others."""
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
    def {hook}(self{words}):
        words = ({values})
        {body}
{more}'''
CLASS = "class A(clbench.Method):\n    'A.'\n"
BAD = f"@clbench.method('bad')\n{CLASS}"
FILES = {
    "an empty file": "",
    "a syntax error": "def (",
    "a NUL": "x = 1\0",
    "not UTF-8": "x = '\udcff'",
    "an import that fails": "import nothing_of_this_name",
    "a number as a name": f"@clbench.method(3)\n{CLASS}",
    "an empty name": f"@clbench.method('')\n{CLASS}",
    "a name with an escape": f"@clbench.method('a\\x1b')\n{CLASS}",
    "a long name": f"@clbench.method('a' * 5_000)\n{CLASS}",
    "a name that exists": f"@clbench.method('vanilla')\n{CLASS}",
    "no parentheses": f"@clbench.method\n{CLASS}",
    "a function as a method": "@clbench.method('bad')\ndef bad(): pass\n",
    "no subclass": "@clbench.method('bad')\nclass A:\n    'A.'\n",
    "a setting of no type": f"{BAD}    x: nope = 1\n",
    "a wrong default": f"{BAD}    x: int = 'a'\n",
    "an __init__ that raises": f"{BAD}    def __init__(self, **k): raise Own('no')\n",
    **{f"{what} at import": body for what, body in RAISES.items() if "NAME" not in body},
}
"""Texts of a plug-in of which no method can be had."""
SHIFT = '''
@clbench.shift("odd")
class Odd(clbench.Shift):
    """Builds nonsense."""
    tasks: list[str]
    def build(self, context):
        words = ()
        {body}
'''


def plugin(number: int, rng: Random, folder: Path) -> Case:
    """Write a plug-in that does harm at import, in a hook, or in a shift."""
    path = folder / "bad.py"
    words = [*RUN, "--plugin", "bad.py", "--methods", "bad,vanilla"]
    if number < len(FILES):
        what, text = list(FILES.items())[number]
        head = HEAD if "clbench" in text or text in RAISES.values() else ""
        path.write_bytes((head + text).encode("utf-8", "surrogateescape"))
        return Case(f"bad.py: {what}", words, dry=True, refused=True)
    number -= len(FILES)
    if number % 8 == 7:
        body = rng.choice([*RAISES.values(), *(f"return {value}" for value in RETURNS)])
        path.write_text(HEAD + SHIFT.format(body=body.replace("NAME", "'build'")))
        suite = folder / "small.toml"
        suite.write_text(suite.read_text().replace('"dataset"', '"odd"'))
        words = [*RUN, "--plugin", "bad.py"]
        return Case(f"a shift: {body:.80}", words, dry=True, refused=True)
    hook = list(HOOKS)[number % len(HOOKS)]
    what, body, changed = _body(rng)
    more = "    def acts_in(self, index): return True\n" if hook != "acts_in" else ""
    names = HOOKS[hook]
    text = METHOD.format(
        hook=hook,
        words=f", {names}" if names else "",
        values=f"{names}," if names else "",
        body=body,
        more=more,
    )
    if changed:  # then do as the hook does by default
        text = text.rstrip() + "\n" if not more else text
        text = text.replace(body, f"{body}\n        return super().{hook}({names})", 1)
    path.write_text(HEAD + text)

    def checks(folder: Path, undisturbed: Path) -> Iterator[str]:
        cells = [path / "out/cells/pair--vanilla--seed0.json" for path in (folder, undisturbed)]
        if cells[0].exists() and what not in OPEN:  # vanilla runs after the bad method
            mine, vanilla = (json.loads(path.read_text()) for path in cells)
            if mine["R"] != vanilla["R"]:
                yield f"vanilla differs: {mine['status']} {mine['R']} {mine['reason']}"

    raises = body in RAISES.values() and hook not in ("state",)
    return Case(f"{hook} {what}", words, dry=True, refused=raises, checks=checks)


def _body(rng: Random) -> tuple[str, str, bool]:
    """Return what a hook does, its code, and whether it goes on as by default."""
    kind = rng.randrange(3)
    if kind == 0:
        return *rng.choice(list(RAISES.items())), False
    if kind == 1:
        value = rng.choice(RETURNS)
        return f"returns {value}", f"return {value}", False
    return *rng.choice(list(CHANGES.items())), True
