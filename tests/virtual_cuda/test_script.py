"""`python -m virtual_cuda FILE`: the script runs as Python would run it, and the table tells what
its lines did.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from virtual_cuda import gpus

from tests.sharing import WarmPython

# What a script can see of how it was started.
ABOUT = """
import json, sys
from helper import NAME
import __main__
import __main__ as again
print(json.dumps([
    sys.argv, sys.path[0], __file__, __name__, str(__spec__), __package__, __cached__, __doc__,
    NAME, again.__dict__ is globals(), "annotations" in globals(), type(__loader__).__name__,
]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "helper.py").write_text("NAME = 'helper'\n")
    return tmp_path


def run(
    warm: WarmPython, folder: Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    return warm.run(
        "virtual_cuda", *arguments, cwd=folder, env={**os.environ, "COLUMNS": "120", **environment}
    )


def test_a_script_sees_what_python_would_show_it(warm_python: WarmPython, folder: Path) -> None:
    (folder / "script.py").write_text(f'"""What it is for."""\n{ABOUT}')
    plain = subprocess.run(
        [sys.executable, "script.py", "--gpus", "-x", "--", "y"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    ours = run(warm_python, folder, "script.py", "--gpus", "-x", "--", "y")
    assert json.loads(ours.stdout) == json.loads(plain.stdout)
    assert ours.returncode == 0
    assert ours.stderr == (
        "\nscript.py did nothing on the virtual GPU.\n"
        "--gpus went to script.py; options of python -m virtual_cuda come before FILE\n"
    )


def test_a_module_runs_too(warm_python: WarmPython, folder: Path) -> None:
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").write_text(
        "import torch\nSEEN = torch.cuda.device_count()\n"
    )
    (folder / "package" / "__main__.py").write_text(
        "import sys\nfrom . import SEEN\nprint(SEEN, __name__, sys.argv[1:])\n"
    )
    done = run(warm_python, folder, "--gpus", "2", "-m", "package", "-m", "more")
    assert (done.returncode, done.stdout) == (0, "2 __main__ ['-m', 'more']\n")
    missing = run(warm_python, folder, "-m", "package.none")
    assert (missing.returncode, missing.stderr) == (
        1,
        "python -m virtual_cuda: there is no module package.none to run\n",
    )


def test_code_runs_too(warm_python: WarmPython, folder: Path) -> None:
    code = (
        "import sys, torch; print(torch.cuda.device_count(), sys.argv, __name__, sys.path[0] == '')"
    )
    done = run(warm_python, folder, "--gpus", "2", "-c", code, "-m", "more")
    assert (done.returncode, done.stdout) == (0, "2 ['-c', '-m', 'more'] __main__ True\n")
    assert done.stderr == "\n-c did nothing on the virtual GPU.\n"


USING = """\
import atexit
import torch
x = torch.ones(1024).to("cuda")
atexit.register(lambda: print("last", x.sum().item()))
for _ in range(3):
    x.max().item()
print("first", x.min().item() + x.min().item())
"""


def test_the_table_goes_to_stderr_after_everything_else(
    warm_python: WarmPython, folder: Path
) -> None:
    (folder / "script.py").write_text(USING)
    done = run(
        warm_python,
        folder,
        "--timeline",
        "--trace",
        "trace.json",
        "--html",
        "page.html",
        "script.py",
    )
    assert (done.returncode, done.stdout) == (0, "first 2.0\nlast 1024.0\n")
    # The times are the model's, whose figures may be fitted anew.
    lines = [
        " ".join(re.sub(r"[\d.]+ [nµm]s\b", "T", line).split())
        for line in done.stderr.splitlines()[1:9]
    ]
    assert lines == [
        "What each line did on the virtual GPU, "
        "and how long it would take on T4 (estimated), modelled:",
        "script.py host GPU to device waits ops allocated peak",
        '3 x = torch.ones(1024).to("cuda") T T 4 KiB 1 4 KiB 4 KiB',
        '4 atexit.register(lambda: print("last", x.sum().item())) T T 1 2 4 B 4.5 KiB',
        "6 x.max().item() T T 3 6 12 B 4.5 KiB",
        '7 print("first", x.min().item() + x.min().item()) T T 2 4 8 B 4.5 KiB',
        "total T T 4 KiB 6 13 4.02 KiB 4.5 KiB",
        "script.py:6 made the CPU wait for the GPU 3 times.",
    ]
    assert re.search(
        r"\nModelled on T4 \(estimated\): [\d.]+ µs, GPU idle \d+% of the time\.\n"
        r"The GPU is idle \d+% of",
        done.stderr,
    )
    assert "modelled on T4 (estimated), to scale: " in done.stderr
    assert "script.py: 6 waits" in done.stderr
    assert "reference" not in done.stderr
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    named = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert list(named.values()) == [
        "host, modelled on T4 (estimated)",
        "cuda:0 stream 0, modelled on T4 (estimated)",
    ]
    slices = [e for e in events if e["ph"] == "X"]
    assert {e["args"]["time"] for e in slices} == {"modelled"}
    assert {e["args"].get("site", "")[-2:] for e in slices if e["cat"] == "kernel"} == {
        ":4",
        ":6",
        ":7",
    }
    for track in named:  # what is on one track does not overlap
        ends = [(e["ts"], e["ts"] + e["dur"]) for e in slices if e["tid"] == track]
        assert all(end <= start + 0.01 for (_, end), (start, _) in itertools.pairwise(ends))
    page = (folder / "page.html").read_text(encoding="utf-8")
    assert page.count("<tr") == 1 + len(USING.splitlines())
    assert "on T4 (estimated), modelled" in page
    assert "range(3)" in page
    # One file that can be mailed, with the code as it is written.
    assert not re.search(r"(?:src|href)=\"(?!#)|url\(|@import", page)
    assert "<code>    x.max().item()</code>" in page
    # Worst lines first, each on the page.
    worst = page[page.index("by waits") : page.index("Every line")]
    targets = re.findall(r'href="#(L\d+-\d+)"', worst)
    assert targets == ["L0-6", "L0-7", "L0-4"]
    assert all(f'id="{target}"' in page for target in targets)
    # The copy to the device is drawn as a copy, and what is read as waits.
    _, on_host, _ = page.split('<rect class="lane"')
    assert on_host.count('class="wait"') == 6
    assert re.search(r'class="copy"[^>]*data-line="L0-3"', on_host)


def test_options_behind_the_script_are_told_unless_the_script_knows_them(
    warm_python: WarmPython, folder: Path
) -> None:
    (folder / "script.py").write_text("import sys\nprint(sys.argv[1:], '--gpu' in sys.argv)\n")
    options = ("--timeline", "--gpu", "T4", "--html=x.html", "--epochs", "3")
    done = run(warm_python, folder, "script.py", *options)
    assert "\n--timeline and --html went to script.py; options of " in done.stderr
    assert "come before FILE" in done.stderr
    assert not (folder / "x.html").exists()


@pytest.mark.parametrize(
    ("ending", "status", "said"),
    [
        ("sys.exit(7)", 7, ""),
        ("sys.exit('so long')", 1, "so long\n"),
        ("x.max().numpy()", 1, "TypeError: can't convert cuda:0 device type tensor to numpy"),
        (
            (
                "sys.excepthook = lambda *e: print('mine', e[1], file=sys.stderr)\n"
                "raise ValueError('no')"
            ),
            1,
            "mine no\n",
        ),
        ("def", 1, 'script.py", line 5\n    def\n'),
    ],
)
def test_a_script_ends_as_it_would_have_ended(
    warm_python: WarmPython, folder: Path, ending: str, status: int, said: str
) -> None:
    (folder / "script.py").write_text(
        f"import sys, torch\n\n\nx = torch.ones(4, device='cuda')\n{ending}\n"
    )
    done = run(warm_python, folder, "script.py")
    assert done.returncode == status
    assert said in done.stderr
    assert f"virtual_cuda{os.sep}" not in done.stderr, "no frames of ours"
    if "numpy" in ending:
        assert done.stderr.startswith('Traceback (most recent call last):\n  File "')
        assert "\nscript.py ended with TypeError: can't convert" in done.stderr


def test_memory_is_as_small_as_asked_for(warm_python: WarmPython, folder: Path) -> None:
    (folder / "script.py").write_text("import torch\nx = torch.empty(1024**3, device='cuda')\n")
    done = run(warm_python, folder, "--memory", "1GiB", "script.py")
    assert done.returncode == 1
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name a script"),
        (["missing.py"], "there is no file missing.py"),
        (["."], ". is a folder"),
        (["work.ipynb"], "work.ipynb is a notebook, not a script"),
        (["--memory", "8 sheep", "helper.py"], "'8 sheep' is not a size"),
        (["--trace", "no/such/trace.json", "helper.py"], "cannot write no/such/trace.json"),
        (["--gpus", "0", "helper.py"], "python -m virtual_cuda: "),
        (["--real", "helper.py"], "can use; without --real the script runs on a virtual GPU"),
    ],
)
def test_what_cannot_be_run_is_told_in_a_sentence(
    warm_python: WarmPython, folder: Path, arguments: list[str], said: str
) -> None:
    done = run(warm_python, folder, *arguments, CUDA_VISIBLE_DEVICES="")
    assert done.returncode
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("command", [["virtual_cuda"], ["gpudojo", "run"]])
def test_ctrl_c_ends_the_process_as_python_ends(
    warm_python: WarmPython, folder: Path, command: list[str]
) -> None:
    script = (
        "import os, signal\n"
        "kept = open('kept', 'w')\n"
        "kept.write('text')\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
    )
    (folder / "script.py").write_text(script)
    done = warm_python.run(*command, "script.py", cwd=folder, env=os.environ)
    assert done.returncode == -signal.SIGINT
    assert done.stderr.startswith("Traceback")
    assert done.stderr.count("\nKeyboardInterrupt\n") == 1
    assert "Abort" not in done.stderr
    assert (folder / "kept").read_text() == "text"


@pytest.mark.slow
def test_processes_that_the_script_spawns_have_the_device(
    warm_python: WarmPython, folder: Path
) -> None:
    script = """
import multiprocessing, torch
from torch.utils.data import DataLoader, TensorDataset

def answer(queue, x):
    x.add_(1)
    queue.put((__name__, torch.cuda.device_count(), torch.ones(3, device="cuda:1").sum().item()))

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=answer, args=(queue, x := torch.zeros(3, device="cuda:1")[1:]))
    process.start()
    print(queue.get())
    process.join()
    print(x.tolist())  # memory is shared
    items = TensorDataset(torch.ones(2, 1))
    loader = DataLoader(items, num_workers=1, multiprocessing_context="fork")
    print(sum(batch.to("cuda").item() for batch, in loader), process.exitcode)
"""
    (folder / "script.py").write_text(script)
    done = run(warm_python, folder, "--gpus", "2", "script.py")
    assert done.stdout == "('__mp_main__', 2, 3.0)\n[1.0, 1.0]\n2.0 0\n", done.stderr
    assert done.stderr.startswith("\nWhat each line did"), "and nothing of the other processes"


@pytest.mark.slow
@pytest.mark.skipif(
    "forkserver" not in multiprocessing.get_all_start_methods(), reason="there are no fork servers"
)
def test_processes_of_a_fork_server_have_the_device(warm_python: WarmPython, folder: Path) -> None:
    script = """
import torch
from torch.utils.data import DataLoader

def kept(batch):
    return batch[0].add_(1) if batch[0].dim() == 1 else batch[0]

if __name__ == "__main__":
    items = [torch.zeros(2, device="cuda:1"), torch.eye(2).to_sparse().to("cuda:1")]
    items.append(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], device="cuda:1"))
    for context in ("forkserver", "spawn"):
        options = dict(collate_fn=kept, num_workers=1, multiprocessing_context=context)
        for batch in DataLoader(items, **options):
            print(batch.device, batch.is_nested, batch.layout)
    print(items[0].tolist())  # memory is shared
"""
    (folder / "script.py").write_text(script)
    done = run(warm_python, folder, "--gpus", "2", "script.py")
    kinds = (
        "cuda:1 False torch.strided",
        "cuda:1 False torch.sparse_coo",
        "cuda:1 True torch.strided",
    )
    assert done.stdout.splitlines() == [*kinds, *kinds, "[2.0, 2.0]"], done.stderr


def test_a_gpu_is_compared_with_a_cpu_and_the_limit_is_named(
    warm_python: WarmPython, folder: Path
) -> None:
    (folder / "copies.py").write_text(
        "import torch\nfor _ in range(3): torch.rand(1 << 20).to('cuda') * 2\n"
    )
    done = run(warm_python, folder, "--gpu", "t4", "--compare", "cpu", "copies.py")
    assert "of the time: pin the memory" in done.stderr
    assert re.search(
        r"T4 \(estimated\) [\d.]+ ms, CPU [\d.]+ [mµ]s \(Intel Core i7-1165G7, estimated\), "
        r"both modelled: the copies cost",
        done.stderr,
    )
    refused = run(warm_python, folder, "--gpu", "rtx 9090", "copies.py").stderr
    assert "no figures for a GPU 'rtx 9090'; choose one of RTX" in refused
    assert all(name in refused for name in gpus())
