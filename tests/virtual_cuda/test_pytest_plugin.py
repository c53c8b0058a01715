"""The pytest fixture `virtual_cuda` and its marker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sharing import WarmPython

REPOSITORY = Path(__file__).parents[2]
Run = tuple[pytest.Pytester, WarmPython]


@pytest.fixture
def run(pytester: pytest.Pytester, warm_python: WarmPython, monkeypatch: pytest.MonkeyPatch) -> Run:
    # By hand instead of by its entry point, so that this works in a checkout that is not installed,
    # too.
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY / "graders"), prepend=os.pathsep)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    # Where it is set, pytest's summary repeats whole messages instead of their beginnings.
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv(
        "PYTEST_ADDOPTS", "-p virtual_cuda.pytest_plugin --strict-markers -p no:cacheprovider"
    )
    return pytester, warm_python


def outcomes(run: Run, source: str) -> tuple[dict[str, int], str]:
    """How many tests of this file passed, failed and so on, and what pytest said."""
    pytester, python = run
    pytester.makepyfile(source)
    # Not in this process: pytester would take torch out of sys.modules again, and torch cannot be
    # imported twice.
    done = python.run("pytest", cwd=pytester.path, env=os.environ)
    return pytest.RunResult.parse_summary_nouns(done.stdout.splitlines()), done.stdout


def test_the_fixture_and_the_marker_open_the_device_that_was_asked_for(run: Run) -> None:
    found, said = outcomes(
        run,
        """
        import pytest
        import torch

        before = torch.cuda.is_available(), torch.cuda.device_count(), torch.Tensor.to

        def test_plain(virtual_cuda):
            assert torch.cuda.is_available() and torch.cuda.device_count() == 1
            assert torch.ones(1000).to("cuda").is_cuda
            assert virtual_cuda.ledger.bytes_to_device() == 4000

        @pytest.mark.virtual_cuda(devices=2, memory="1 GiB", name="Slow device")
        def test_all_options(virtual_cuda):
            assert torch.cuda.device_count() == 2
            assert torch.cuda.get_device_name(1) == "Slow device"
            assert torch.cuda.get_device_properties(0).total_memory == 1024**3

        @pytest.mark.virtual_cuda(memory="1 MiB")
        class TestSmall:
            def test_too_much(self, virtual_cuda):
                with pytest.raises(torch.OutOfMemoryError):
                    torch.empty(1024**2, device="cuda")

            @pytest.mark.virtual_cuda(memory="64 MiB")
            def test_nearest_marker_wins(self, virtual_cuda):
                assert torch.empty(1024**2, device="cuda").is_cuda

        @pytest.mark.virtual_cuda(devices=3)
        def test_marker_without_argument():
            assert torch.cuda.device_count() == 3

        @pytest.mark.virtual_cuda(values=False, memory="80 GiB", max_memory="40 GiB")
        def test_without_values():
            assert torch.ones(2**30, 9, device="cuda").sum().item() == 0

        @pytest.mark.xfail(strict=True, raises=ZeroDivisionError)
        def test_fails(virtual_cuda):
            1 / 0

        def test_device_is_gone_after_a_failing_test():
            assert (torch.cuda.is_available(), torch.cuda.device_count(), torch.Tensor.to) == before

        def test_a_new_device_has_an_empty_ledger(virtual_cuda):
            assert len(virtual_cuda.ledger.transfers()) == 0
        """,
    )
    assert found == {"passed": 8, "xfailed": 1}, said


def test_a_forgotten_move_fails_as_on_a_gpu(run: Run) -> None:
    """The README's example, before it is mended."""
    found, said = outcomes(
        run,
        """
        import torch
        from torch import nn

        def predict(model, batch):
            device = "cuda" if torch.cuda.is_available() else "cpu"
            return model.to(device)(batch)

        def test_predict(virtual_cuda):
            assert predict(nn.Linear(4, 2), torch.ones(8, 4)).shape == (8, 2)
        """,
    )
    assert found == {"failed": 1}
    assert "Expected all tensors to be on the same device" in said


def test_a_marker_that_makes_no_sense_says_so(run: Run) -> None:
    found, said = outcomes(
        run,
        """
        import pytest

        @pytest.mark.virtual_cuda(2)
        def test_positional(): ...

        @pytest.mark.virtual_cuda(gpus=2)
        def test_unknown(): ...

        @pytest.mark.virtual_cuda(memory="8 sheep")
        def test_no_size(): ...

        @pytest.mark.virtual_cuda(devices=0)
        def test_no_device(): ...

        @pytest.mark.virtual_cuda(gpu="abacus")
        def test_no_gpu(): ...

        @pytest.mark.virtual_cuda(name=5)
        def test_no_name(): ...

        @pytest.mark.virtual_cuda(values="no")
        def test_no_answer(): ...
        """,
    )
    assert found == {"errors": 7}
    for sentence in (
        (
            "@pytest.mark.virtual_cuda takes devices=..., memory=..., name=..., gpu=..., "
            "clock=..., values=...; it was given 2"
        ),
        (
            "@pytest.mark.virtual_cuda takes devices=..., memory=..., name=..., gpu=..., "
            "clock=..., values=...; it was given gpus"
        ),
        "no virtual CUDA device: '8 sheep' is not a size",
        "no virtual CUDA device: 0 is not a number of devices",
        "no virtual CUDA device: there are no figures for a GPU 'abacus'",
        "(did you mean gpu?)",
        "no virtual CUDA device: name=5 is not possible; write a text",
        "no virtual CUDA device: values='no' is not possible; write True or False",
    ):
        assert sentence in said
    assert said.count("choose one of H200") == 1
    assert "During handling of the above exception" not in said
    assert "pytest_plugin.py" not in said, "the plugin's own frames are of no use to the reader"


def test_the_marker_is_registered(run: Run) -> None:
    run[0].runpytest_inprocess("--markers").stdout.fnmatch_lines(
        ["@pytest.mark.virtual_cuda(devices=1, *"]
    )


def test_a_project_that_does_not_use_it_loads_one_thin_module(tmp_path: Path) -> None:
    (tmp_path / "test_unrelated.py").write_text(
        "import os, sys\n"
        "def test_modules():\n"
        "    print(sorted(name for name in sys.modules if name.partition('.')[0] in "
        "('virtual_cuda', 'gpudojo')))\n"
        "    assert not {'torch', 'numpy', 'msgspec', 'rich'} & set(sys.modules)\n"
        "    assert not [name for name in os.environ if 'CUDA' in name or 'DOJO' in name]\n",
        encoding="utf-8",
    )
    environment = {
        name: value
        for name, value in os.environ.items()
        if "CUDA" not in name and "DOJO" not in name
    }
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-s",
            "-p",
            "virtual_cuda.pytest_plugin",
            "-p",
            "no:cacheprovider",
        ],
        cwd=tmp_path,
        env=environment
        | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(REPOSITORY / "graders")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (
        "['virtual_cuda', 'virtual_cuda.lazy_names', 'virtual_cuda.pytest_plugin']" in done.stdout
    )


SKIPPING = """
    import pytest
    import torch
    import unittest

    needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")

    @needs_cuda
    def test_with_a_mark():
        assert torch.ones(3, device="cuda").sum().item() == 3

    @pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
    def test_on_two():
        assert torch.ones(3, device="cuda:1").sum().item() == 3

    class OldStyle(unittest.TestCase):
        @unittest.skipUnless(torch.cuda.is_available(), "no GPU")
        def test_wrong(self):
            self.assertFalse(torch.ones(3).cuda().is_cuda)

    def test_without_a_device():
        pass

    def test_with_the_fixture(virtual_cuda):
        torch.ones(3).cuda()
        assert virtual_cuda.ledger.bytes_to_device() == 12

    @pytest.mark.virtual_cuda(devices=3)
    def test_with_a_device_of_its_own(virtual_cuda):
        assert torch.cuda.device_count() == 3

    def test_after_that():
        assert torch.cuda.device_count() < 3
    """


def test_the_option_runs_tests_that_are_skipped_without_a_gpu(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester, _ = run
    pytester.makeconftest(
        "import torch\n"
        "SEEN = torch.cuda.is_available()\n"
        "def pytest_report_header(): return f'{SEEN=}'"
    )
    found, said = outcomes(run, SKIPPING)
    assert found == {"passed": 4, "skipped": 3}
    assert "SEEN=False" in said
    monkeypatch.setenv("PYTEST_ADDOPTS", f"{os.environ['PYTEST_ADDOPTS']} --virtual-cuda")
    found, said = outcomes(run, SKIPPING)
    assert found == {"passed": 5, "failed": 1, "skipped": 1}
    assert "SEEN=True" in said
    assert "3 tests used the device: 2 passed, 1 failed." in said
    assert "1 test was skipped for a reason that names a GPU:" in said
    assert "1 x needs two GPUs" in said
    monkeypatch.setenv("PYTEST_ADDOPTS", f"{os.environ['PYTEST_ADDOPTS']} --virtual-cuda-devices 2")
    found, _ = outcomes(run, SKIPPING)
    assert found == {"passed": 6, "failed": 1}


def test_the_option_refuses_a_device_that_cannot_be(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "PYTEST_ADDOPTS", f"{os.environ['PYTEST_ADDOPTS']} --virtual-cuda --virtual-cuda-gpu T5"
    )
    pytester, python = run
    done = python.run("pytest", cwd=pytester.path, env=os.environ)
    assert (
        "--virtual-cuda: there are no figures for a GPU 'T5'; choose one of"
        in done.stdout + done.stderr
    )


def test_what_the_device_cannot_do_is_told_apart(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", f"{os.environ['PYTEST_ADDOPTS']} --virtual-cuda")
    source = """
        import torch
        from virtual_cuda.errors import DeviceClosed

        def test_of_the_code():
            torch.ones(3).cuda() + torch.ones(3).cuda().cpu()

        def test_of_the_device(virtual_cuda):
            for device in virtual_cuda.devices:
                device.closed = True
            try:
                torch.ones(3, device="cuda")
            finally:
                for device in virtual_cuda.devices:
                    device.closed = False
        """
    found, said = outcomes(run, source)
    assert found == {"failed": 2}
    assert "1 failed because the virtual device cannot do something" in said


ISOLATED = """
    import functools
    import pytest
    import torch
    import unittest
    import conftest

    kept = []

    @functools.cache
    def table():
        return torch.arange(100, device="cuda")

    def test_first(model):
        kept.append(torch.ones(1000, 1000, device="cuda"))
        torch.manual_seed(3)
        torch.cuda.set_sync_debug_mode("error")
        table()

    @pytest.mark.parametrize("time", range(2))
    def test_begins_with_an_empty_device(model, virtual_cuda, time):
        assert torch.cuda.memory_allocated() == torch.cuda.max_memory_allocated() == 0
        assert torch.cuda.get_sync_debug_mode() == 0
        assert len(virtual_cuda.ledger) == 0
        # What is left of other tests and of wider fixtures can be used, as on a GPU.
        assert kept[0].sum().item() == 1e6
        assert table()[7].item() == 7
        assert (conftest.TABLE + 1).sum().item() == 55
        model(torch.ones(2, 1000, device="cuda")).sum().backward()
        assert len(virtual_cuda.ledger.syncs("item")) == 3
        assert model.weight.data_ptr() != conftest.TABLE.data_ptr()

    @pytest.mark.virtual_cuda(devices=2)
    def test_on_another_device():
        assert torch.cuda.device_count() == 2
        with pytest.raises(RuntimeError, match="is paused here"):
            kept[0].sum()

    def test_after_that():
        assert kept[0].sum().item() == 1e6

    def test_loses_the_device():
        torch.ones(3, device="cuda")[torch.tensor([5], device="cuda")]
        with pytest.raises(RuntimeError, match="device-side assert"):
            torch.cuda.synchronize()

    def test_after_the_device_was_lost():
        assert kept[0].sum().item() == 1e6

    class Old(unittest.TestCase):
        @classmethod
        def setUpClass(cls):
            cls.x = torch.ones(1000).cuda()

        def setUp(self):
            self.y = torch.ones(1000).cuda()

        def test_one(self):
            self.assertEqual(torch.cuda.memory_allocated(), 4096)
            self.assertEqual((self.x + self.y).sum().item(), 2000)

        test_two = test_one
    """
CONFTEST = """
import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TABLE = torch.arange(10, device=DEVICE)

@pytest.fixture(scope="session")
def model():
    return torch.nn.Linear(1000, 1000).to(DEVICE)
"""


def test_with_the_option_each_test_has_a_device_of_its_own(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run[0].makeconftest(CONFTEST)
    monkeypatch.setenv("PYTEST_ADDOPTS", f"{os.environ['PYTEST_ADDOPTS']} --virtual-cuda")
    found, said = outcomes(run, ISOLATED)
    assert found == {"passed": 9}, said
    assert "8 tests used the device: 8 passed." in said


WIDER = """
    import pytest
    import torch

    @pytest.fixture(scope="module")
    def weights(virtual_cuda_module):
        return torch.ones(1000).cuda()

    class TestOfAClass:
        def test_1(self, virtual_cuda_class):
            type(self).x = torch.ones(1000).cuda()

        def test_2(self, virtual_cuda_class):
            assert torch.cuda.memory_allocated() == 4096
            assert len(virtual_cuda_class.ledger.transfers()) == 1

        def test_3(self, virtual_cuda_class, virtual_cuda):
            assert torch.cuda.memory_allocated() == 0
            assert self.x.sum().item() == 1000
            assert virtual_cuda_class.ledger.syncs("item") == ()
            assert len(virtual_cuda.ledger.syncs("item")) == 1

        @pytest.mark.virtual_cuda(max_syncs=0)
        def test_4(self, virtual_cuda_class):
            assert self.x.is_cuda

    def test_of_a_module(weights):
        assert weights.sum().item() == 1000

    def test_of_a_module_and_its_own(weights, virtual_cuda):
        total = weights.sum()
        assert total.item() == 1000
        assert torch.cuda.memory_allocated() == 512

    def test_of_the_session(virtual_cuda_session):
        assert torch.ones(3).cuda().is_cuda
    """


@pytest.mark.parametrize("option", ["", "--virtual-cuda"])
def test_fixtures_of_a_wider_scope_share_a_device(
    run: Run, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", f"{os.environ['PYTEST_ADDOPTS']} {option}")
    found, said = outcomes(run, WIDER)
    assert found == {"passed": 7}, said


def test_the_command_line_chooses_the_device_of_fixtures_too(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "PYTEST_ADDOPTS",
        f"{os.environ['PYTEST_ADDOPTS']} --virtual-cuda-gpu T4 --virtual-cuda-devices 2",
    )
    found, said = outcomes(
        run,
        """
        import pytest
        import torch

        def test_plain(virtual_cuda):
            assert (torch.cuda.device_count(), torch.cuda.get_device_name()) == (2, "Tesla T4")

        @pytest.mark.virtual_cuda(devices=1)
        def test_marker():
            assert (torch.cuda.device_count(), torch.cuda.get_device_name()) == (1, "Tesla T4")
        """,
    )
    assert found == {"passed": 2}, said


def test_outcomes_are_counted_once_and_in_english(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", f"{os.environ['PYTEST_ADDOPTS']} --virtual-cuda")
    _, said = outcomes(run, "import torch\ndef test_it(): torch.ones(3).cuda()")
    assert "1 test used the device: 1 passed." in said
    _, said = outcomes(
        run,
        """
        import pytest
        import torch

        @pytest.fixture
        def on_device(): return torch.ones(3).cuda()

        @pytest.fixture
        def broken(on_device): 1 / 0

        @pytest.fixture
        def breaks_late(on_device):
            yield
            1 / 0

        def test_passes(on_device): pass
        def test_fails(on_device): 1 / 0
        def test_error(broken): pass
        def test_late_error(breaks_late): pass
        def test_skips(on_device): pytest.skip("no")
        @pytest.mark.xfail
        def test_xfails(on_device): 1 / 0
        @pytest.mark.virtual_cuda(devices=2)
        def test_marker(): torch.ones(3).cuda(1)
        def test_host(): pass
        """,
    )
    assert "7 tests used the device: 2 passed, 1 failed, 2 error, 1 skipped, 1 xfailed." in said, (
        said
    )


def test_the_five_forms_of_the_manual_pass(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (REPOSITORY / "docs" / "virtual-cuda.md").read_text(encoding="utf-8")
    forms = page.split("<!-- five forms -->")[1].split("<!-- /five forms -->")[0]
    source = forms.replace("```python", "").replace("```", "")
    found, said = outcomes(run, source)
    assert found == {"passed": 4, "skipped": 1}, said
    # A test that opens a device by itself gets it with the option, too.
    monkeypatch.setenv("PYTEST_ADDOPTS", f"{os.environ['PYTEST_ADDOPTS']} --virtual-cuda")
    found, said = outcomes(run, source)
    assert found == {"passed": 5}, said


def test_a_device_that_conftest_starts_is_there_at_import(run: Run) -> None:
    run[0].makeconftest("from virtual_cuda import virtual_cuda; virtual_cuda().start()")
    found, said = outcomes(
        run,
        """
        import torch
        TABLE = torch.arange(10, device="cuda" if torch.cuda.is_available() else "cpu")

        def test_fixture(virtual_cuda):
            assert TABLE.is_cuda and TABLE.sum().item() == 45
            assert len(virtual_cuda.ledger.syncs("item")) == 1

        def test_none():
            assert TABLE.cpu().tolist()[-1] == 9
        """,
    )
    assert found == {"passed": 2}, said
