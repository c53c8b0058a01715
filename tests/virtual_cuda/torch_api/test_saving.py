"""Saving and loading: where tensors come back, what stays shared, how often the host waits."""

from __future__ import annotations

import copy
import functools
import io
import pickle

import pytest
import torch
from torch import nn
from virtual_cuda import virtual_cuda
from virtual_cuda.ledger.rows import SyncRow


def through(value, **options):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, **options)


def waits(gpu) -> int:
    return sum(isinstance(row, SyncRow) for row in gpu.ledger.rows)


def test_a_host_tensor_cannot_look_into_a_storage_on_the_device() -> None:
    with virtual_cuda():
        storage = torch.ones(3, device="cuda").untyped_storage()
        for source in (
            storage,
            torch.storage.TypedStorage(wrap_storage=storage, dtype=torch.float32, _internal=True),
        ):
            with pytest.raises(RuntimeError, match="the devices must match"):
                torch.empty(0).set_(source)
        assert torch.empty(0, device="cuda").set_(storage, 0, (3,), (1,)).tolist() == [1, 1, 1]
        with pytest.raises(RuntimeError, match="only available on CPU"):
            storage._share_fd_cpu_()
    assert torch.empty(0).set_(torch.ones(3).untyped_storage(), 0, (3,), (1,)).tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("place", "device"),
    [
        (None, "cuda:0"),
        ("cpu", "cpu"),
        ("cuda", "cuda:0"),
        ("cuda:1", "cuda:1"),
        (torch.device("cuda", 1), "cuda:1"),
        ({"cuda:0": "cuda:1"}, "cuda:1"),
        ({"cuda:0": "cpu"}, "cpu"),
        (lambda storage, location: storage, "cpu"),
        (lambda storage, location: storage.cuda(1), "cuda:1"),
        (lambda storage, location: None, "cuda:0"),
    ],
)
@pytest.mark.parametrize("weights_only", [True, False])
def test_every_map_location(place, device, weights_only):
    with virtual_cuda(devices=2):
        x = torch.arange(6.0, device="cuda").view(2, 3).T
        loaded = through({"x": x}, map_location=place, weights_only=weights_only)["x"]
        assert str(loaded.device) == device
        assert loaded.tolist() == x.tolist()
        assert loaded.stride() == x.stride()


def test_an_absent_gpu():
    with (
        virtual_cuda(),
        pytest.raises(RuntimeError, match=r"on CUDA device 4 but torch.cuda.device_count\(\) is 1"),
    ):
        through(torch.ones(2, device="cuda"), map_location="cuda:4")


def test_a_file_from_the_device_on_a_machine_without_one():
    buffer = io.BytesIO()
    with virtual_cuda():
        torch.save(torch.ones(2, device="cuda"), buffer)
    buffer.seek(0)
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="Attempting to deserialize object on a CUDA device"):
            torch.load(buffer)
        buffer.seek(0)
    assert torch.load(buffer, map_location="cpu").tolist() == [1, 1]


def test_shared_storages_stay_shared_and_are_copied_once():
    with virtual_cuda() as gpu:
        x = torch.zeros(4, device="cuda")
        before = waits(gpu)
        one, two = through([x, x[2:]])
        assert waits(gpu) == before + 2  # out once, in once
        two.fill_(3)
        assert one.tolist() == [0, 0, 3, 3]


def test_parameters_attributes_and_gradients():
    with virtual_cuda():
        parameter = nn.Parameter(torch.ones(2, device="cuda"), requires_grad=False)
        tensor = torch.ones(2, device="cuda", requires_grad=True)
        parameter.name_of_mine = "p"
        tensor.name_of_mine = "t"
        again, other = through([parameter, tensor], weights_only=False)
        assert isinstance(again, nn.Parameter)
        assert not again.requires_grad
        assert other.requires_grad
        assert other.is_leaf
        assert (again.name_of_mine, other.name_of_mine) == ("p", "t")
        assert again.is_cuda
        assert other.is_cuda


def test_a_whole_checkpoint():
    with virtual_cuda():
        model = nn.Linear(3, 2).to("cuda")
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(1, 3, device="cuda")).sum().backward()
        optimizer.step()
        loaded = through(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, map_location="cpu"
        )
        assert {t.device.type for t in loaded["model"].values()} == {"cpu"}
        fresh = nn.Linear(3, 2).to("cuda")
        fresh.load_state_dict(loaded["model"])
        assert torch.equal(fresh.weight, model.weight)


def test_pickle():
    with virtual_cuda():
        x = torch.arange(3.0, device="cuda")
        again = pickle.loads(pickle.dumps(x))
        assert again.is_cuda
        assert again.tolist() == [0, 1, 2]
        assert pickle.loads(pickle.dumps(torch.empty(0, device="cuda"))).shape == (0,)


class Tagged(torch.Tensor):
    pass


def test_a_class_of_the_students_own():
    with virtual_cuda():
        x = torch.ones(2).as_subclass(Tagged).to("cuda")
        assert type(x).__name__ == "Tagged"
        assert isinstance(x, Tagged)
        assert isinstance(x + 1, Tagged)
        assert type(x.cpu()) is Tagged
        assert (x + 1).device == torch.device("cuda:0")
        assert isinstance(through(x, weights_only=False), Tagged)


def test_the_class_of_a_device_tensor_equals_that_of_a_host_tensor():
    with virtual_cuda():
        x = torch.ones(2, device="cuda")
        assert type(x) == torch.Tensor  # noqa: E721
        assert type(x) in (list, torch.Tensor)
        assert torch.nn.Parameter == type(torch.nn.Parameter(x))  # noqa: E721
        assert type(torch.nn.Parameter(x)) != torch.Tensor  # noqa: E721
        assert type(x.as_subclass(Tagged)) == Tagged  # noqa: E721
        assert type(x.as_subclass(Tagged)) != torch.Tensor  # noqa: E721


def test_a_class_of_the_students_own_is_copied_only_if_it_can_make_one_of_its_kind():
    class Growing(torch.Tensor):
        def new_empty(self, *args, **kwargs):
            return super().new_empty(*args, **kwargs).as_subclass(Growing)

    with virtual_cuda():
        assert isinstance(copy.deepcopy(torch.ones(2, device="cuda").as_subclass(Growing)), Growing)
        with pytest.raises(
            RuntimeError, match="only works for subclass types that implement new_empty"
        ):
            copy.deepcopy(torch.ones(2, device="cuda").as_subclass(Tagged))


class Weight(torch.nn.Parameter):
    def __new__(cls, data, requires_grad=True, tag=None):
        made = torch.Tensor._make_subclass(cls, data, requires_grad)
        made.tag = tag
        return made


def test_a_class_made_by_make_subclass():
    class Named(torch.Tensor):
        @staticmethod
        def __new__(cls, data):
            return torch.Tensor._make_subclass(cls, data)

    with virtual_cuda():
        x = Named(torch.ones(2, device="cuda"))
        assert type(x + 1).__name__ == "Named"
        assert x.is_cuda
        assert type(torch.Tensor._make_subclass(torch.Tensor, x)).__name__ == "Tensor"


def test_a_class_of_parameters_is_kept_on_the_way_to_the_device_and_back():
    module = torch.nn.Module()
    module.weight = weight = Weight(torch.ones(2), tag="first")
    with virtual_cuda():
        module.cuda().double()
        assert module.weight is weight
        assert isinstance(weight, Weight)
        assert weight.is_cuda
        assert weight.tag == "first"
        assert type(copy.deepcopy(module).weight).__name__ == "Weight"
        (weight * weight).sum().backward()
        torch.optim.SGD(module.parameters(), lr=0.5).step()
        assert isinstance(Weight(weight.detach()), Weight)
        module.cpu()
    assert type(module.weight) is Weight
    assert module.weight.tolist() == [0, 0]


def test_a_torch_dispatch_is_followed():
    seen = []

    class Counting(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return super().__torch_dispatch__(func, types, args, kwargs)

    with virtual_cuda():
        x = torch.Tensor._make_subclass(Counting, torch.ones(2, device="cuda"))
        assert (x + 1).tolist() == [2, 2]
        assert x.add_(1) is x
    assert seen == ["aten.add.Tensor", "aten.add_.Tensor"]


def test_a_torch_function_is_followed():
    seen = []

    class Counting(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            seen.append(func.__name__)
            return super().__torch_function__(func, types, args, kwargs or {})

    with virtual_cuda():
        x = torch.ones(2, device="cuda").as_subclass(Counting)
        y = torch.add(x, 1)
        assert seen[-1] == "add"
        assert isinstance(y, Counting)
        assert y.sum().item() == 4


OVERRIDDEN = {
    "linear": lambda x: torch.nn.functional.linear(x, torch.ones(2, 2, device="cuda")),
    "one_hot": lambda x: torch.nn.functional.one_hot(x.long()),
    "scaled_dot_product_attention": lambda x: torch.nn.functional.scaled_dot_product_attention(
        *(x.view(1, 1, 2, 2),) * 3
    ),
    "rms_norm": lambda x: torch.rms_norm(x, (2,)),
    "fft": lambda x: torch.fft.fft(x),
}


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_a_torch_function_is_told_of_the_function_that_programs_know(name):
    seen = []

    class Asked(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            seen.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    home = next(h for h in (torch.fft, torch, torch.nn.functional) if hasattr(h, name))
    with virtual_cuda():
        x = torch.ones(2, 2, device="cuda")
        OVERRIDDEN[name](x.as_subclass(Asked))
        assert seen[-1] is getattr(home, name)
        seen.clear()
        with Mode():
            OVERRIDDEN[name](x)
        assert getattr(home, name) in seen


def test_attention_with_a_mask_that_is_made_when_it_is_used():
    from torch.nn.attention.bias import causal_lower_right

    with virtual_cuda():
        q = torch.randn(1, 2, 3, 8, device="cuda")
        k = torch.randn(1, 2, 5, 8, device="cuda")
        mask = torch.ones(3, 5, dtype=torch.bool, device="cuda").tril(diagonal=2)
        attention = torch.nn.functional.scaled_dot_product_attention
        torch.testing.assert_close(
            attention(q, k, k, causal_lower_right(3, 5)), attention(q, k, k, mask)
        )


def test_functions_chosen_by_class_find_tensors_of_the_device() -> None:
    @functools.singledispatch
    def what(value: object) -> str:
        return "something else"

    what.register(torch.Tensor, lambda value: "a tensor")
    what.register(list, lambda value: "a list")
    with virtual_cuda():
        x = torch.ones(1, device="cuda")
        weight = nn.Linear(1, 1).cuda().weight
        assert [what(each) for each in (x, weight, [x])] == ["a tensor", "a tensor", "a list"]
        what.register(nn.Parameter, lambda value: "a parameter")
        assert [what(each) for each in (x, weight)] == ["a tensor", "a parameter"]


def test_the_class_of_a_parameter_derives_from_that_of_torch() -> None:
    with virtual_cuda():
        weight = nn.Linear(1, 1).cuda().weight
        assert issubclass(type(weight), nn.Parameter)
        assert isinstance(weight, nn.Parameter)
        assert not isinstance(weight.data, nn.Parameter)
        assert not hasattr(weight, "_is_param")
