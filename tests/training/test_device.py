"""Which precision `auto` takes, and that it rests on a measurement."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from clbench.core.files import cache_dir
from clbench.training import device
from clbench.training.memory import PeakMemory

CPU = torch.device("cpu")
MULTIPLY = torch.nn.functional.linear


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[pytest.MonkeyPatch]:
    """Pretend that the processor has instructions for bf16, with an empty cache."""
    monkeypatch.setenv("CLBENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(device, "_processor", lambda: "Model X avx512_bf16")
    device.bf16_gain.cache_clear()
    yield monkeypatch
    device.bf16_gain.cache_clear()


def clock(monkeypatch: pytest.MonkeyPatch, *, float32: float, bf16: float) -> None:
    """Let products in each number format take that many seconds."""
    now, cost = [0.0], {torch.float32: float32, torch.bfloat16: bf16}

    def timed(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        now[0] += cost[rows.dtype]
        return MULTIPLY(rows, weight)

    monkeypatch.setattr(torch.nn.functional, "linear", timed)
    monkeypatch.setattr(device.time, "perf_counter", lambda: now[0])


@pytest.mark.parametrize(
    ("float32", "bf16", "chosen"),
    [(0.02, 0.03, "float32"), (0.02, 0.016, "float32"), (4.0, 2.0, "bf16")],
)
def test_auto_follows_the_measured_speed(
    processor: pytest.MonkeyPatch, float32: float, bf16: float, chosen: str
) -> None:
    clock(processor, float32=float32, bf16=bf16)
    assert device.bf16_gain(CPU) == pytest.approx(float32 / bf16)
    assert device.resolve_precision("auto", CPU).name == chosen
    note = device.precision_note("auto", CPU)
    assert note.startswith(f"Precision: {chosen}. ")
    assert f" {float32 / bf16:.2g} times as fast" in note


@pytest.mark.parametrize("disturbed", [torch.float32, torch.bfloat16])
def test_other_programs_do_not_flip_the_choice(
    processor: pytest.MonkeyPatch, disturbed: torch.dtype
) -> None:
    now, calls = [0.0], {torch.float32: 0, torch.bfloat16: 0}

    def timed(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        calls[rows.dtype] += 1
        busy = rows.dtype == disturbed and calls[rows.dtype] % 4 != 2
        now[0] += 0.001 * (20.0 if busy else 1.0) / (1.25 if rows.dtype == torch.bfloat16 else 1.0)
        return MULTIPLY(rows, weight)

    processor.setattr(torch.nn.functional, "linear", timed)
    processor.setattr(device.time, "perf_counter", lambda: now[0])
    assert device.bf16_gain(CPU) == pytest.approx(1.25)
    assert now[0] < 0.15


def test_the_speed_is_measured_once_for_a_processor(processor: pytest.MonkeyPatch) -> None:
    clock(processor, float32=3.0, bf16=1.0)
    assert device.bf16_gain(CPU) == pytest.approx(3.0)
    clock(processor, float32=1.0, bf16=1.0)
    device.bf16_gain.cache_clear()
    assert device.bf16_gain(CPU) == pytest.approx(3.0)
    processor.setattr(device, "_processor", lambda: "Model Y avx512_bf16")
    device.bf16_gain.cache_clear()
    assert device.bf16_gain(CPU) == pytest.approx(1.0)
    for file in cache_dir("bf16").iterdir():
        file.write_text("{")
    clock(processor, float32=5.0, bf16=2.0)
    device.bf16_gain.cache_clear()
    assert device.bf16_gain(CPU) == pytest.approx(2.5)  # a damaged file is measured again


def test_without_instructions_for_bf16_nothing_is_measured(processor: pytest.MonkeyPatch) -> None:
    processor.setattr(device, "_processor", lambda: "Model Z avx2")
    assert device.bf16_gain(CPU) == 0.0
    assert device.resolve_precision("auto", CPU).name == "float32"
    assert device.precision_note("auto", CPU).startswith("Precision: float32. auto knows no bf16 ")
    assert device.precision_note("float32", CPU) == ""
    assert device.resolve_precision("bf16", CPU).name == "bf16"


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's peak memory")
def test_memory_freed_before_a_cell_does_not_count_as_its_own() -> None:
    device.keep_freed_memory()
    peak = PeakMemory(CPU)
    blocks = [torch.ones(2_500_000) for _ in range(40)]  # 400 MB
    before = peak.megabytes()
    del blocks
    after = PeakMemory(CPU).megabytes()
    assert before is not None
    assert after is not None
    assert after < before - 300


def test_freed_memory_is_returned_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 59.0, 61.0, 62.0, 121.5])
    returned: list[bool] = []
    monkeypatch.setattr(device, "_returned", 0.0)
    monkeypatch.setattr(device, "time", SimpleNamespace(monotonic=lambda: next(times)))
    monkeypatch.setattr(device, "return_freed_memory", lambda: returned.append(True))
    counts = []
    for _ in range(5):
        device.return_old_memory()
        counts.append(len(returned))
    assert counts == [0, 0, 1, 1, 2]
