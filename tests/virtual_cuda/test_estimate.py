"""`python -m virtual_cuda estimate`: memory and time of a script that computes nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from virtual_cuda.device.memory import Allocator
from virtual_cuda.estimate.memory_record import MemoryEvent, MemoryRecord
from virtual_cuda.estimate.result import CONTEXT, LESS_NEEDED, MORE_RESERVED, whether_it_fits
from virtual_cuda.estimate.variants import batch_given, find_largest_batch, with_batch

from tests.virtual_cuda.estimator import Estimator

TRAINING = """
import argparse
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
options = parser.parse_args()
model = nn.Sequential(nn.Linear(4096, 16384), nn.ReLU(), nn.Linear(16384, 4096)).to("cuda")
optimizer = torch.optim.Adam(model.parameters())
for step in range(1000):
    batch = torch.rand(options.batch_size, 4096).to("cuda")
    loss = model(batch).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""
WEIGHTS = 2 * 4096 * 16384 * 4 + (16384 + 4096) * 4


def test_a_training_script_is_told_its_parts_line_and_gpus(estimator: Estimator) -> None:
    found = estimator.result_of(TRAINING, "--gpu", "H200", "FILE", "--batch-size", "32")
    assert found["steps"] == 3
    assert found["parts"]["parameters"] == pytest.approx(WEIGHTS, rel=0.001)
    assert found["parts"]["optimizer states"] == pytest.approx(2 * WEIGHTS, rel=0.001)
    assert found["peak"] == sum(found["parts"].values())
    assert found["peak_line"].endswith("train.py:16")  # optimizer.step()
    assert found["batch"] == 32
    fits = {each["gpu"]: each["fits"] for each in found["on_gpus"]}
    assert fits["H200"] == "yes"
    assert found["step_seconds"] > 0
    (read,) = found["assumptions"]
    assert read["line"].endswith("train.py:17")


def test_the_largest_batch_is_told_by_its_first_two_digits(estimator: Estimator) -> None:
    found = estimator.result_of(TRAINING, "--gpu", "H200", "FILE", "--batch-size", "32")
    digits = str(found["largest_batch"])
    rounded = int(digits[:2]) * 10 ** (len(digits) - 2)
    done = estimator.estimate(TRAINING, "--gpu", "H200", "FILE", "--batch-size", "32")
    assert f"about {rounded:,} would fit" in done.stdout


SEQUENCES = """
import torch
from torch import nn

embed = nn.Embedding(100, 64).to("cuda")
body = nn.TransformerEncoderLayer(64, 4, batch_first=True).to("cuda")
head = nn.Linear(64, 100).to("cuda")
parameters = [*embed.parameters(), *body.parameters(), *head.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.1)
for step in range(9):
    for part in range(2):
        words = GIVEN
        scores = head(body(embed(words) if words.dim() == 2 else words))
        scores.sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("given", "batch", "tokens"),
    [
        ("torch.zeros(8, 16, dtype=torch.long).to('cuda')", 16, 256),
        ("torch.rand(8, 16, 64).to('cuda')", 16, None),
    ],
    ids=["words", "vectors"],
)
def test_a_batch_is_what_the_first_model_is_given_in_a_step(
    estimator: Estimator, given: str, batch: int, tokens: int | None
) -> None:
    found = estimator.result_of(SEQUENCES.replace("GIVEN", given), "FILE")
    assert (found["batch"], found["tokens"]) == (batch, tokens)


NAMED = """
import warnings
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

class Odd:
    @property
    def __class__(self):
        raise RuntimeError("nobody should ask")

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 64)
        self.body = nn.TransformerEncoderLayer(64, 4, batch_first=True)
        self.head = nn.Linear(64, 100)
    def forward(self, scale, words):
        return self.head(checkpoint(self.body, self.embed(words), use_reentrant=False)) * scale

odd = Odd()
model = Model().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(9):
    for part in range(2):
        words = torch.zeros(8, LENGTH, dtype=torch.long).cuda()
        model(scale=torch.tensor(2.0), words=words).sum().backward()
    optimizer.step()
"""


def test_inputs_by_name_are_counted_and_passes_of_checkpoints_are_not(estimator: Estimator) -> None:
    found = estimator.result_of(NAMED.replace("LENGTH", "16"), "FILE")
    assert (found["batch"], found["pass_batch"], found["tokens"]) == (16, 8, 256)
    assert found["remarks"] == []


def test_batches_of_different_sizes_are_told(estimator: Estimator) -> None:
    found = estimator.result_of(NAMED.replace("LENGTH", "16 + 4 * step"), "FILE")
    (remark,) = found["remarks"]
    assert "from 8 × 16 to 8 × 24" in remark


def recorded(*sizes: int) -> MemoryRecord:
    """A record of blocks of these sizes, which are taken and stay."""
    memory = MemoryRecord(Allocator(1 << 60), [])
    for number, size in enumerate(sizes):
        memory.wanted.append(size)
        memory.events.append(MemoryEvent(0, number, True))
    return memory


def test_what_may_not_fit_is_not_said_to_fit() -> None:
    needed = 8 << 30
    memory = recorded(*[needed // 8] * 8)
    safe = int(needed * (1 + MORE_RESERVED)) + CONTEXT + 1024
    assert whether_it_fits(memory, safe) == "yes"
    assert whether_it_fits(memory, safe - (1 << 21)) == "close"
    least = int(needed * (1 - LESS_NEEDED))
    assert whether_it_fits(memory, least) == "no"
    assert whether_it_fits(memory, needed) == "close"


def test_the_terminal_says_what_fits_and_what_is_estimated(estimator: Estimator) -> None:
    done = estimator.estimate(TRAINING, "--gpu", "T4", "FILE")
    assert done.returncode == 0, done.stderr
    assert "stopped after 3 steps" in done.stdout
    assert "Peak memory" in done.stdout
    assert "optimizer states" in done.stdout
    assert "T4 (estimated)" in done.stdout
    assert "read a value that is not known, and got 0" in done.stdout


def test_a_model_without_an_optimizer_is_told_by_its_calls(estimator: Estimator) -> None:
    source = """
import torch
model = torch.nn.Linear(8192, 8192).half().cuda()
with torch.inference_mode():
    for _ in range(4):
        model(torch.rand(16, 8192, device="cuda").half())
"""
    found = estimator.result_of(source, "FILE")
    assert found["step_is"] == "forward pass"
    assert found["steps"] == 4
    assert found["parts"]["parameters"] == pytest.approx(8192 * 8193 * 2, rel=0.01)


def test_half_a_batch_that_no_loader_makes_is_said_to_change_nothing(estimator: Estimator) -> None:
    done = estimator.estimate(TRAINING, "--try", "half-batch", "FILE")
    assert "half-batch: changed nothing, since no DataLoader makes" in done.stdout


def test_an_evaluation_before_training_is_not_all(estimator: Estimator) -> None:
    source = """
import torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batch = torch.rand(8, 64).cuda()
with torch.no_grad():
    for _ in range(9):
        model(batch)
while True:
    model(batch).sum().backward()
    optimizer.step()
"""
    found = estimator.result_of(source, "--steps", "2", "FILE")
    assert found["step_is"] == "optimizer step"
    assert found["steps"] == 2


def test_training_without_an_optimizer_is_stopped(estimator: Estimator) -> None:
    source = """
import torch
model = torch.nn.Linear(64, 64).cuda()
while True:
    model(torch.rand(8, 64).cuda()).sum().backward()
    for parameter in model.parameters():
        parameter.data.add_(parameter.grad, alpha=-0.1)
"""
    found = estimator.result_of(source, "FILE")
    assert (found["ended"], found["step_is"]) == ("stopped after 3 steps", "training step")
    assert found["parts"]["gradients"] > 0
    once = source.replace("while True", "for _ in range(2)")
    found = estimator.result_of(once, "FILE")
    assert (found["ended"], found["steps"]) == ("the script ended", 2)


def test_moving_the_model_is_no_part_of_the_first_step(estimator: Estimator) -> None:
    found = estimator.result_of(TRAINING, "--steps", "1", "FILE", "--batch-size", "1")
    copied = WEIGHTS / 40e9  # seconds that the bus would need for the weights alone
    later = estimator.result_of(TRAINING, "--steps", "2", "FILE", "--batch-size", "1")
    assert found["step_seconds"] < later["step_seconds"] + copied


def test_a_loop_that_waits_for_a_value_is_stopped(estimator: Estimator) -> None:
    source = """
import torch
model = torch.nn.Linear(64, 64).cuda()
token = torch.zeros(1, 64, device="cuda")
with torch.no_grad():
    while not (token.max() > 0.5):
        token = model(token)
"""
    found = estimator.result_of(source, "--steps", "5", "FILE")
    assert found["steps"] == 5
    assert found["ended"].startswith("stopped after 5 forward passes")
    assert found["step_seconds"] > 0
    assert found["assumptions"][0]["line"].endswith("train.py:6")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--gpu", "B9000", "FILE"), "there are no figures for a GPU 'B9000'"),
        (("--steps", "-1", "FILE"), "--steps: give a number of steps"),
        (("missing.py",), "there is no file missing.py"),
        ((), "name a script"),
    ],
)
def test_wrong_options_are_refused_in_a_sentence(
    estimator: Estimator, arguments: tuple[str, ...], said: str
) -> None:
    done = estimator.estimate(TRAINING, *arguments)
    assert done.returncode == 2
    assert said in done.stderr


def test_what_needs_values_is_refused_with_its_line(estimator: Estimator) -> None:
    source = "import torch\ntorch.bincount(torch.randint(0, 5, (3,), device='cuda'))\n"
    done = estimator.estimate(source, "FILE")
    assert done.returncode == 1
    assert "train.py:2: torch.bincount needs the values of its tensors" in done.stderr
    assert "Traceback" not in done.stderr


def test_autocast_is_compared_and_a_page_is_written(estimator: Estimator, tmp_path: Path) -> None:
    done = estimator.estimate(
        TRAINING, "--try", "autocast", "--html", str(tmp_path / "page.html"), "FILE"
    )
    assert done.returncode == 0, done.stderr
    assert "autocast:" in done.stdout
    assert "→" in done.stdout
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<polygon" in page
    assert "optimizer states" in page
    assert "Timeline of the last optimizer step" in page
    assert 'class="kernel"' in page


@pytest.mark.parametrize(
    ("guess", "largest"), [(1, 1), (1, 2), (90, 100), (90, 60), (1200, 1000), (1200, 2000)]
)
def test_the_largest_batch_is_found_from_a_guess_that_is_not_far(guess: int, largest: int) -> None:
    found = find_largest_batch(guess, lambda batch: batch <= largest)
    assert found <= largest
    assert largest - found <= max(largest // 16, 1)


def test_json_has_what_was_tried_and_the_script_prints_elsewhere(estimator: Estimator) -> None:
    arguments = ("--try", "autocast,half-batch", "--batch", "batch-size", "--gpu", "H200", "FILE")
    done = estimator.estimate(TRAINING, "--json", *arguments, "--batch-size", "64")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    autocast, half = found["variants"]
    assert (autocast["change"], half["change"]) == ("autocast", "half-batch")
    assert half["estimate"]["batch"] == 32
    search = found["search"]
    assert search["option"] == "--batch-size"
    fitting = [run["batch"] for run in search["runs"] if run["fits"] == "yes"]
    others = [run["batch"] for run in search["runs"] if run["fits"] != "yes"]
    assert search["largest"] == max(fitting)
    assert max(fitting) < min(others) <= max(fitting) * 17 / 16 + 1


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent otherwise there")
def test_ctrl_c_tells_what_is_known_by_then(estimator: Estimator) -> None:
    source = TRAINING.replace("print(loss.item())", "if step == 1: signal.raise_signal(2)")
    done = estimator.estimate("import signal\n" + source, "--json", "FILE")
    assert done.returncode == 130
    found = json.loads(done.stdout)
    assert found["ended"].startswith("interrupted")
    assert found["steps"] == 2
    done = estimator.estimate("import signal\nsignal.raise_signal(2)\n", "FILE")
    assert done.returncode == 130
    assert "Traceback" not in done.stderr


def test_an_option_of_the_script_gets_another_value() -> None:
    script = ["train.py", "--batch-size", "8", "--fast"]
    assert batch_given(script, "--batch-size") == 8
    assert with_batch(script, "--batch-size", 4) == ("train.py", "--batch-size", "4", "--fast")
    assert with_batch(["a.py", "--b=8"], "--b", 4) == ("a.py", "--b=4")
    assert with_batch(["a.py"], "--b", 4) == ("a.py", "--b", "4")
    assert batch_given(["a.py"], "--b") is None


EVALUATED = """
import torch
from torch import nn

model = nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
batch = torch.rand(64, 1024, device="cuda")
for step in range(3):
    model(batch).mean().backward()
    optimizer.step()
    if step == 1:
        with torch.no_grad():
            for _ in range(200):
                model(batch)
"""


def test_an_evaluation_between_two_steps_does_not_count_for_the_usual_step(
    estimator: Estimator,
) -> None:
    found = estimator.result_of(EVALUATED, "FILE")
    alone = estimator.result_of(EVALUATED.replace("step == 1", "False"), "FILE")
    assert found["step_seconds"] == pytest.approx(alone["step_seconds"], rel=0.05)
    assert found["batch"] == alone["batch"] == 64
    assert "The time is that of the usual step; the longest took" in found["remarks"][0]
    assert alone["remarks"] == []
