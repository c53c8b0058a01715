"""torch.compile, torch.export, flex_attention and operators of torch.library on the device."""

from __future__ import annotations

import contextlib
import copy
import io
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode
from virtual_cuda import VirtualGpu, virtual_cuda

OPTIONS: list[dict[str, Any]] = [
    {},
    {"mode": "reduce-overhead"},
    {"mode": "max-autotune", "fullgraph": True},
    {"dynamic": True, "backend": "aot_eager"},
    {"backend": "eager"},
    {"options": {"triton.cudagraphs": True}},
]


@pytest.fixture
def gpu() -> Iterator[VirtualGpu]:
    with virtual_cuda() as opened:
        yield opened


@pytest.fixture
def x(gpu: VirtualGpu) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(2, 3).cuda()


@pytest.fixture
def model(gpu: VirtualGpu) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU()).cuda()


def passes(gpu: VirtualGpu, *call: Any) -> list[str]:
    first = len(gpu.ledger)
    call[0](*call[1:])
    return [
        f"{type(r).__name__} {getattr(r, 'name', '')}{getattr(r, 'module', '')}"
        for r in gpu.ledger[first:]
    ]


@pytest.mark.filterwarnings("ignore:torch.compile does not compile")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_compiled_module_does_what_the_module_does(
    gpu: VirtualGpu, model: nn.Module, x: torch.Tensor, options: dict[str, Any]
) -> None:
    compiled: Any = torch.compile(model, **options)
    assert torch.equal(compiled(x), model(x))
    assert passes(gpu, compiled, x) == passes(gpu, model, x)
    compiled(x).sum().backward()
    assert all(p.grad is not None and p.grad.is_cuda for p in model.parameters())
    assert list(compiled.state_dict()) == ["_orig_mod.0.weight", "_orig_mod.0.bias"]
    assert all(
        site.file == __file__
        for site in (r.site for r in gpu.ledger.operations())
        if site is not None
    )


@pytest.mark.filterwarnings("ignore:torch.compile does not compile")
def test_hooks_of_a_compiled_module_are_called(model: nn.Module, x: torch.Tensor) -> None:
    seen: list[str] = []
    model.register_forward_hook(lambda *_: seen.append("inside"))
    compiled: Any = torch.compile(model)
    compiled.register_forward_hook(lambda *_: seen.append("outside"))
    compiled(x)
    assert seen == ["inside", "outside"]


def test_the_first_compiled_call_says_that_it_is_eager(model: nn.Module, x: torch.Tensor) -> None:
    @torch.compile(fullgraph=True)
    def wave(t: torch.Tensor) -> torch.Tensor:
        return t.sin() + t.cos()

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        wave(x)
        torch._dynamo.reset()
        torch.compiler.set_stance("default")
        wave(x)
        model.compile()
        model(x)
    (only,) = [w for w in said if "torch.compile" in str(w.message) and "eagerly" in str(w.message)]
    assert only.filename == __file__


def test_a_function_compiled_before_runs_on_the_device_and_compiles_again_afterwards() -> None:
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    wave: Any = torch.compile(lambda t: t.sin() + 1, backend=backend)
    with virtual_cuda(), pytest.warns(UserWarning, match="eagerly"):
        assert wave(torch.zeros(2, device="cuda")).is_cuda
    assert not graphs
    wave(torch.zeros(2))
    assert len(graphs) == 1


@pytest.mark.parametrize("name", ["mode", "backend"])
def test_what_torch_compile_does_not_know_is_refused_as_elsewhere(
    model: nn.Module, name: str
) -> None:
    with pytest.raises(Exception, match="nope"):
        torch.compile(model, **{name: "nope"})


# ---- torch.export and tracing --------------------------------------------------------------------


@pytest.mark.parametrize("strict", [False, True])
def test_a_model_on_the_device_is_exported(model: nn.Module, x: torch.Tensor, strict: bool) -> None:
    batch = torch.export.Dim("batch")
    exported = torch.export.export(model, (x,), dynamic_shapes=({0: batch},), strict=strict)
    file = io.BytesIO()
    torch.export.save(exported, file)
    file.seek(0)
    more = torch.cat([x, x, x])
    for program in (exported, torch.export.load(file)):
        assert torch.equal(program.module()(more), model(more))


def test_fake_tensors_of_the_device_have_gradients(gpu: VirtualGpu) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        weight = torch.empty(3, 3, device="cuda", requires_grad=True)
        (torch.empty(2, 3, device="cuda") @ weight).sum().backward()
        assert weight.grad is not None
        assert str(weight.grad.device) == "cuda:0"


def test_fake_modules_of_the_device(gpu: VirtualGpu) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        refusal: Any = pytest.raises(RuntimeError, match=r"Couldn't swap Linear\.weight")
        if torch.__version__.startswith(("2.8.", "2.9.")):  # which move them
            refusal = contextlib.nullcontext()
        with refusal:  # as on every device
            nn.Linear(2, 2).cuda()
        module = nn.Sequential(nn.Conv2d(3, 4, 3, device="cuda"), nn.BatchNorm2d(4, device="cuda"))
        out = module(torch.randn(2, 3, 8, 8).cuda())
        out.sum().backward()
        assert repr(module[0].weight.grad) == "FakeTensor(..., device='cuda:0', size=(4, 3, 3, 3))"
        assert repr(torch.tensor([1], device="cuda") + 1) == (
            "FakeTensor(..., device='cuda:0', size=(1,), dtype=torch.int64)"
        )


TRACED: dict[str, Callable[[torch.Tensor], Any]] = {
    "zeros": lambda x: x + torch.zeros(3, device=x.device),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "there and back": lambda x: (x.cpu() + 1).to(x.device, torch.float64),
    "jvp": lambda x: torch.func.jvp(
        lambda y: y @ torch.ones(3, 2, device=y.device) + y[0, 0], (x,), (x,)
    ),
}


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("name", TRACED)
def test_a_traced_function_names_the_device_and_runs(x: torch.Tensor, name: str, mode: str) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(TRACED[name], tracing_mode=mode)(x)
    devices = {node.kwargs["device"] for node in graph.graph.nodes if "device" in node.kwargs}
    assert torch.device("cuda:0") in devices
    assert devices <= {torch.device("cuda:0"), torch.device("cpu")}
    torch.testing.assert_close(graph(x), TRACED[name](x))


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")
def test_a_linearized_function(model: nn.Module, x: torch.Tensor) -> None:
    out, tangent_of = torch.func.linearize(model, x)
    torch.testing.assert_close((out, tangent_of(x)), torch.func.jvp(model, (x,), (x,)))


class Listing(TorchDispatchMode):
    """Lists every operator with its devices and the classes that have a say."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append((str(func), (kwargs or {}).get("device"), types))
        return func(*args, **(kwargs or {}))


def test_a_dispatch_mode_sees_what_it_sees_on_a_gpu(gpu: VirtualGpu) -> None:
    host = torch.ones(2)
    place = torch.device("cuda:0")
    with Listing() as listing:
        x = host.to("cuda")
        x = x.cpu().to("cuda", torch.float64).mul(2)
        torch.where(x > 0, x, 0.0)
    assert x.tolist() == [2, 2]
    assert listing.seen == [
        ("aten._to_copy.default", place, ()),
        ("aten._to_copy.default", torch.device("cpu"), ()),
        ("aten._to_copy.default", place, ()),
        ("aten.mul.Tensor", None, ()),
        ("aten.gt.Scalar", None, ()),
        ("aten.scalar_tensor.default", place, ()),
        ("aten.where.self", None, ()),
    ]


@pytest.mark.parametrize("index", [[0, 2], (0, [1, 2]), [True, False, True], (..., [0])])
def test_a_dispatch_mode_does_not_hinder_indices_in_a_list(gpu: VirtualGpu, index: Any) -> None:
    x = torch.arange(9, device="cuda").reshape(3, 3)
    with Listing() as listing:
        part = x[index]
    assert part.tolist() == torch.arange(9).reshape(3, 3)[index].tolist()
    assert listing.seen[-1][0] == "aten.index.Tensor"


def test_a_dispatch_mode_is_left_as_it_was() -> None:
    before = Listing.__torch_dispatch__
    with virtual_cuda(), Listing() as listing:
        torch.ones(2, device="cuda")
    assert Listing.__torch_dispatch__ is before
    assert [name for name, _, _ in listing.seen] == ["aten.ones.default"]


def test_a_parameter_that_wraps_tensors_moves_with_its_module(gpu: VirtualGpu) -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    module = nn.Module()
    module.weight = weight = nn.Parameter(TwoTensor(torch.ones(2), torch.zeros(2)))
    (weight * weight).sum().backward()
    module.cuda()
    assert module.weight is weight
    assert weight.a.is_cuda
    assert weight.b.is_cuda
    assert weight.grad.a.tolist() == [2, 2]
    torch.optim.SGD(module.parameters(), lr=0.5).step()
    assert weight.a.tolist() == [0, 0]


def placed(x: torch.Tensor, device: torch.device | None = None) -> torch.Tensor:
    return x if device is None else torch.zeros(2, device=device) + x


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_script_takes_a_device(gpu: VirtualGpu) -> None:
    scripted: Any = torch.jit.script(placed)
    x = torch.ones(2, device="cuda")
    assert scripted(x, x.device).tolist() == [1, 1]


def test_the_class_of_devices_equals_that_of_a_device(gpu: VirtualGpu) -> None:
    assert type(torch.device("cuda")) == torch.device  # noqa: E721
    assert {torch.device: "device"}[type(torch.device("cuda"))] == "device"


def test_kernels_of_inductor_are_refused(model: nn.Module, x: torch.Tensor) -> None:
    import torch._inductor

    traced = torch.fx.symbolic_trace(model)
    with pytest.raises(NotImplementedError, match="cannot run kernels of Inductor"):
        torch._inductor.compile(traced, [x])


def test_kernels_of_triton_are_refused(x: torch.Tensor) -> None:
    @torch.library.triton_op("outside::by_triton", mutates_args=())
    def by_triton(t: torch.Tensor) -> torch.Tensor:
        torch.library.wrap_triton(None)[1,](t)  # type: ignore[arg-type]
        return t.clone()

    with pytest.raises(NotImplementedError, match="cannot run kernels of Triton"):
        by_triton(x)


# ---- functions of higher order -------------------------------------------------------------------


def attention(device: str, attend: Callable[..., Any] | None) -> list[torch.Tensor]:
    from torch.nn.attention.flex_attention import create_block_mask

    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 4, 32, 16).to(device).requires_grad_() for _ in range(3))
    bias = torch.randn(4).to(device)
    if attend is None:
        scores = query @ key.transpose(-1, -2) / 4 * 0.5 + bias[:, None, None]
        hidden = ~torch.ones(32, 32, dtype=torch.bool).tril()
        out = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ value
    else:
        mask = create_block_mask(
            lambda b, h, i, j: i >= j, None, None, 32, 32, device=device, BLOCK_SIZE=16
        )
        out = attend(
            query, key, value, score_mod=lambda s, b, h, i, j: s * 0.5 + bias[h], block_mask=mask
        )
    out.square().sum().backward()
    return [out.detach().cpu(), *(t.grad.cpu() for t in (query, key, value) if t.grad is not None)]


@pytest.mark.filterwarnings(
    "ignore:torch.compile does not compile", "ignore:flex_attention called without"
)
@pytest.mark.parametrize("compiled", [False, True])
def test_flex_attention(gpu: VirtualGpu, compiled: bool) -> None:
    from torch.nn.attention.flex_attention import flex_attention

    found = attention("cuda", torch.compile(flex_attention) if compiled else flex_attention)
    for ours, plain in zip(found, attention("cpu", None), strict=True):
        torch.testing.assert_close(ours, plain)


@pytest.mark.filterwarnings("ignore:torch.compile does not compile")
def test_cond_takes_a_branch_and_has_gradients(x: torch.Tensor) -> None:
    x.requires_grad_()
    for sign in (1, -1):
        chosen = torch.cond(
            torch.tensor(sign, device="cuda") > 0, lambda t: t * 3, lambda t: t * 5, (x,)
        )
        (gradient,) = torch.autograd.grad(chosen.sum(), x)
        assert gradient.eq(4 - sign).all()


def test_an_operator_that_takes_functions_has_the_kernel_for_cuda(x: torch.Tensor) -> None:
    doubled = Doubled("doubled")
    doubled.py_impl(torch._C.DispatchKey.AutogradCPU)(lambda function, x: None)
    doubled.py_impl(torch._C.DispatchKey.AutogradCUDA)(lambda function, x: 2 * function(x))
    assert torch.equal(doubled(torch.sin, x), 2 * x.sin())


class Doubled(HigherOrderOperator):
    def __call__(self, function: Any, x: Any) -> Any:
        return super().__call__(function, x)


# ---- torch.library -------------------------------------------------------------------------------

library = torch.library.Library("outside", "FRAGMENT")


@torch.library.custom_op("outside::square", mutates_args=())
def square(t: torch.Tensor) -> torch.Tensor:
    assert torch.ops.aten.is_pinned(t) is False
    return t * t


square.register_autograd(
    lambda ctx, grad: 2 * ctx.saved_tensors[0] * grad,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)
square.register_fake(torch.empty_like)


@torch.library.custom_op("outside::increment", mutates_args=("t",))
def increment(t: torch.Tensor) -> None:
    t += 1


@torch.library.custom_op("outside::by_numpy", mutates_args=(), device_types="cpu")
def by_numpy(t: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(t.numpy() * 3)


@torch.library.custom_op("outside::on_gpu", mutates_args=(), device_types="cuda")
def on_gpu(t: torch.Tensor) -> torch.Tensor:
    return t + torch.ones(3, device=t.device)


def test_a_custom_operator_runs_on_the_device_and_has_its_gradient(
    gpu: VirtualGpu, x: torch.Tensor
) -> None:
    x.requires_grad_()
    square(x).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, 2 * x.detach())
    assert "aten.mul.Tensor" in gpu.ledger.operation_counts()
    torch.library.opcheck(square, (x.detach(),), test_utils=("test_schema", "test_faketensor"))


def test_a_custom_operator_writes_into_a_device_tensor(x: torch.Tensor) -> None:
    before = x.clone()
    increment(x)
    assert torch.equal(x, before + 1)


def test_a_kernel_for_the_cpu_gets_cpu_tensors(gpu: VirtualGpu, x: torch.Tensor) -> None:
    tripled = by_numpy(x)
    assert tripled.is_cuda
    assert torch.equal(tripled, x * 3)
    assert gpu.ledger.operation_counts()["outside.by_numpy.default"] == 1


def test_a_python_kernel_for_cuda_gets_device_tensors(x: torch.Tensor) -> None:
    assert torch.equal(on_gpu(x), x + 1)
    library.define("halved(Tensor t) -> Tensor")
    library.impl("halved", lambda t: t / 2 if t.is_cuda else None, "CUDA")
    assert torch.equal(torch.ops.outside.halved(x), x / 2)


@pytest.mark.parametrize(("name", "alias"), [("first", "a"), ("first_to_write", "a!")])
def test_a_view_by_an_operator_of_a_library_is_one_for_autograd(
    x: torch.Tensor, name: str, alias: str
) -> None:
    library.define(f"{name}(Tensor({alias}) t) -> Tensor({alias})")
    library.impl(name, lambda t: t[0], "CompositeExplicitAutograd")
    first = getattr(torch.ops.outside, name)(x)
    assert first._is_view()
    assert first._base is x
    before = x._version
    first.zero_()
    assert (x._version, x[0].tolist()) == (before + 1, [0, 0, 0])


def test_an_operator_that_the_device_cannot_run_says_what_to_add(x: torch.Tensor) -> None:
    library.define("compiled(Tensor t) -> Tensor")
    with pytest.raises(
        NotImplementedError, match=r'register_kernel\("outside::compiled", "cpu", function\)'
    ):
        torch.ops.outside.compiled(x)
    torch.library.register_kernel("outside::compiled", "cpu", torch.neg)
    assert torch.equal(torch.ops.outside.compiled(x), -x)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("traced", [False, True], ids=["scripted", "traced"])
def test_saved_scripts_come_back_where_they_were(
    model: nn.Module, x: torch.Tensor, traced: bool, tmp_path: Path
) -> None:
    script: Any = torch.jit.trace(model, x) if traced else torch.jit.script(model)
    buffer = io.BytesIO()
    files = {"note": ""}
    torch.jit.save(script, buffer, _extra_files={"note": "kept"})
    script.save(tmp_path / "script.pt")
    assert next(script.parameters()).is_cuda
    for place, given in (("cuda", x), ("cpu", x.cpu()), (None, x)):
        buffer.seek(0)
        loaded = torch.jit.load(buffer, place, files)
        assert torch.equal(loaded(given), model(x).to(given.device))
        assert files == {"note": b"kept"}
    assert torch.jit.load(tmp_path / "script.pt")(x).is_cuda


LAYERS_TRACED: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "convolution": (nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), (1, 3, 8, 8)),
    "transposed": (nn.ConvTranspose1d(3, 4, 3), (1, 3, 8)),
    "attention": (nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True), (2, 3, 8)),
    "recurrent": (nn.LSTM(4, 3), (5, 2, 4)),
    "norm": (nn.RMSNorm(4), (2, 4)),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("name", LAYERS_TRACED)
def test_layers_are_traced_as_on_the_cpu(name: str) -> None:
    layer, shape = LAYERS_TRACED[name]
    given = torch.rand(shape)
    there = copy.deepcopy(layer).cuda()
    here = copy.deepcopy(layer)
    scripts: list[Any] = [torch.jit.trace(there, given.cuda()), torch.jit.trace(here, given)]
    kinds = [[node.kind() for node in script.inlined_graph.nodes()] for script in scripts]
    assert kinds[0] == kinds[1]
    made, expected = (
        (out if isinstance(out, torch.Tensor) else out[0])
        for out in (scripts[0](given.cuda()), here(given))
    )
    torch.testing.assert_close(made.cpu(), expected)
    made.sum().backward()
    assert all(parameter.grad is not None for parameter in there.parameters())


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_frozen_scripts_run_and_are_not_saved(model: nn.Module, x: torch.Tensor) -> None:
    frozen = torch.jit.freeze(torch.jit.script(model.eval()))
    assert torch.equal(frozen(x), model(x))
    with pytest.raises(RuntimeError, match="a frozen script on the virtual GPU cannot be saved"):
        torch.jit.save(frozen, io.BytesIO())


class Strict(torch.Tensor):
    """A class that wraps a tensor and knows no operator but those that move and read it."""

    inside: torch.Tensor

    @staticmethod
    def __new__(cls, inside: torch.Tensor) -> Strict:
        made: Any = torch.Tensor._make_wrapper_subclass(
            cls, inside.shape, dtype=inside.dtype, device=inside.device
        )
        made.inside = inside
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if func is not torch.ops.aten._to_copy.default:
            raise NotImplementedError(str(func))
        return cls(func(args[0].inside, **(kwargs or {})))


@pytest.mark.usefixtures("gpu")
def test_a_class_that_wraps_tensors_is_asked_only_for_the_copy() -> None:
    moved: Any = Strict(torch.arange(3.0)).to("cuda")
    assert type(moved) is Strict
    assert moved.inside.is_cuda
    assert moved.inside.tolist() == [0, 1, 2]


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("mode", ["pointwise", "generic"])
@pytest.mark.parametrize("length", [1, 4])
def test_an_associative_scan_has_the_structure_of_its_input(mode: str, length: int) -> None:
    scan = pytest.importorskip("torch._higher_order_ops").associative_scan
    x = torch.arange(2.0 * length, device="cuda").reshape(length, 2).requires_grad_()
    sums = scan(lambda left, right: left + right, x, 0, combine_mode=mode)
    assert torch.equal(sums, x.cumsum(0))
    sums.sum().backward()
    assert x.grad is not None
    assert x.grad[:, 0].tolist() == list(range(length, 0, -1))
    named = scan(lambda left, right: {"a": left["a"] + right["a"]}, {"a": x}, 0, combine_mode=mode)
    assert torch.equal(named["a"], x.cumsum(0))


@pytest.mark.usefixtures("gpu")
def test_a_scan_has_the_structure_that_its_function_returns() -> None:
    scan = pytest.importorskip("torch._higher_order_ops").scan
    x = torch.arange(6.0, device="cuda").reshape(3, 2)

    def step(state: Any, row: torch.Tensor) -> Any:
        total = state["total"] + row
        return {"total": total, "steps": state["steps"] + 1}, (total * 2, [row + 1])

    zeros = torch.zeros(2, device="cuda")
    last, (doubled, [rows]) = scan(step, {"total": zeros, "steps": zeros}, x)
    assert last["total"].tolist() == [6, 9]
    assert last["steps"].tolist() == [3, 3]
    assert torch.equal(doubled, 2 * x.cumsum(0))
    assert torch.equal(rows, x + 1)
