"""What a virtual Mac, and a machine without a GPU, answer to code that selects a device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from virtual_cuda import open_device, virtual_cuda
from virtual_cuda.errors import SelectionOnly
from virtual_cuda.hooks import no_accelerator, virtual_mps


def usual() -> str:
    """As in most tutorials."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def modern() -> str:
    """As in torch's own quickstart."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return "cpu" if found is None else found.type


def test_a_mac_is_chosen() -> None:
    before = usual(), modern()
    with virtual_mps() as device:
        assert (usual(), modern(), device.type) == ("mps", "mps", "mps")
        assert torch.backends.mps.is_built()
        assert (
            torch.mps.device_count(),
            torch.accelerator.device_count(),
            torch.cuda.device_count(),
        ) == (1, 1, 0)
        assert torch.accelerator.current_accelerator(check_available=True) == torch.device("mps")
    assert (usual(), modern()) == before


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(2, device="mps"),
        lambda: torch.ones(2).to("mps"),
        lambda: torch.ones(2).to(device=torch.device("mps", 0)),
        lambda: torch.ones(2).to(torch.device("mps")),
        lambda: torch.tensor([1.0, 1.0], device="mps"),
        lambda: torch.ones_like(torch.zeros(2), device="mps"),
        lambda: torch.ones(2, device="mps") * torch.ones(2, device="mps"),
    ],
)
def test_a_tensor_can_be_made_there_to_find_out(make: Callable[[], torch.Tensor]) -> None:
    with virtual_mps():
        made = make()
        assert (made.device.type, made.is_mps, made.is_cuda) == ("mps", True, False)
        assert (made + 1).sum().item() == 4
        assert "device='mps:0'" in repr(made)
        back = made.cpu()
        assert (type(back), back.device.type, back.tolist()) == (torch.Tensor, "cpu", [1.0, 1.0])
        assert made.to("cpu").numpy().sum() == 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.nn.Linear(2, 2).to("mps"),
        lambda: torch.zeros(2, device="mps", requires_grad=True),
        lambda: torch.zeros(2, requires_grad=True).to("mps"),
    ],
)
def test_nothing_learns_there(make: Callable[[], object]) -> None:
    with (
        virtual_mps(),
        pytest.raises(
            SelectionOnly, match="the virtual device 'mps' supports device selection only"
        ),
    ):
        make()


def test_default_devices_count_too() -> None:
    with torch.device("mps"), virtual_mps():
        assert torch.zeros(2).is_mps
    with virtual_mps(), torch.device("mps"):
        assert torch.zeros(2).is_mps


def test_host_work_goes_on() -> None:
    with virtual_mps() as device:
        assert torch.device(device) == torch.device("mps") == torch.device(type="mps")
        assert torch.einsum("mps,s->mp", torch.ones(1, 2, 3), torch.ones(3)).sum() == 6
        assert torch.nn.Linear(2, 2).to("cpu")(torch.zeros(1, 2)).shape == (1, 2)


def test_a_machine_with_nothing() -> None:
    with virtual_cuda():
        assert (usual(), modern()) == ("cuda", "cuda")
        with no_accelerator() as device:
            assert (usual(), modern(), device.type) == ("cpu", "cpu", "cpu")
            assert torch.accelerator.current_accelerator() is None
        assert (usual(), modern()) == ("cuda", "cuda")


def test_built_is_not_available() -> None:
    with no_accelerator(built=True):
        assert torch.backends.mps.is_built()
        assert torch.backends.cuda.is_built()
        assert (usual(), modern()) == ("cpu", "cpu")
        assert torch.accelerator.current_accelerator() == torch.device("cuda")
        assert torch.accelerator.current_accelerator(check_available=True) is None


def test_all_is_put_back_after_an_error() -> None:
    before = (
        torch.cuda.is_available,
        torch.backends.mps.is_available,
        torch.accelerator.current_accelerator,
    )
    for pretence in (virtual_mps, no_accelerator):
        with pytest.raises(ZeroDivisionError), pretence():
            1 / 0  # noqa: B018
    assert before == (
        torch.cuda.is_available,
        torch.backends.mps.is_available,
        torch.accelerator.current_accelerator,
    )
    assert torch.zeros(2).sum() == 0


def test_selection_can_be_tried_on_any_device() -> None:
    with open_device("cpu") as opened, virtual_mps():
        assert usual() == "mps"
        torch.ones(2)
    assert opened.ledger.operations()
