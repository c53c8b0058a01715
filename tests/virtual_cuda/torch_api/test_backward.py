"""Backward passes and optimizer steps on the device: values, gradients, errors, hooks and the
ledger.
"""

from __future__ import annotations

import copy
import gc
import operator
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, linear
from torch.utils.flop_counter import FlopCounterMode
from virtual_cuda import virtual_cuda
from virtual_cuda.ledger.rows import OperationRow, StreamRow


def _graph(node: Any) -> Iterator[Any]:
    """The nodes of a graph."""
    if node is not None:
        yield node
        for one, _ in node.next_functions:
            yield from _graph(one)


def _net() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3), nn.ReLU(inplace=True), nn.Linear(3, 2)
    ).cuda()


def test_attention_on_another_stream_has_its_backward_there(gpu: Any) -> None:
    layer = nn.MultiheadAttention(8, 2).cuda()
    texts = torch.rand(4, 3, 8).cuda()
    stream = torch.cuda.Stream()
    layer(texts, texts, texts, need_weights=False)
    with torch.cuda.stream(stream):
        out = layer(texts, texts, texts, need_weights=False)[0]
    out.sum().backward()
    name = "aten._scaled_dot_product_efficient_attention_backward.default"
    attention = next(
        number for number, row in enumerate(gpu.ledger.rows) if name == getattr(row, "name", "")
    )
    used = [
        row.stream
        for row in gpu.ledger.rows[:attention]
        if isinstance(row, StreamRow) and row.what == "use"
    ]
    assert used[-1] == stream.stream_id


def test_attention_can_be_scripted(gpu: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.script(nn.MultiheadAttention(8, 2).cuda())
    texts = torch.rand(4, 3, 8).cuda()
    assert scripted(texts, texts, texts)[0].shape == texts.shape


def test_an_operator_that_raises_keeps_no_memory(gpu: Any) -> None:
    gc.collect()
    gc.disable()
    try:
        before = torch.cuda.memory_allocated()
        for function in (torch.add, operator.add, torch.mm):
            with pytest.raises(RuntimeError):
                function(torch.ones(2, 3).cuda(), torch.ones(2, 2).cuda())
            assert torch.cuda.memory_allocated() == before
    finally:
        gc.enable()


def _pictures() -> nn.Sequential:
    layers = (
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3),
        nn.ReLU(),
    )
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


_doubled: list[Any] = [None, lambda given: (given[0].mul_(2),), lambda given: (given[0] * 2,)]


@pytest.mark.parametrize("late", [False, True], ids=["in time", "late"])
@pytest.mark.parametrize(
    "kind", ["penalty", "shared", "hook of a leaf", "hook of its node", "added up", "prehook"]
)
def test_gradients_of_leaves_that_others_use_or_watch(gpu: Any, kind: str, late: bool) -> None:
    torch.manual_seed(0)
    there = _pictures()
    here = copy.deepcopy(there).cuda()
    pictures = torch.rand(4, 3, 8, 8)
    targets = torch.randint(0, 2, (4,))
    found = []
    for model, device in ((there, "cpu"), (here, "cuda")):
        seen: list[Any] = []
        x = pictures.to(device)
        y = targets.to(device)
        for step in range(3):
            if kind != "added up":
                model.zero_grad()
            weight = model[7].weight
            bias = model[4].bias
            nodes: list[Any] = []
            if kind == "hook of its node" and step:
                nodes = [p.view_as(p).grad_fn.next_functions[0][0] for p in (weight, bias)]
            hooked = (
                nodes if nodes else [weight, bias] if kind == "hook of a leaf" and step == 1 else []
            )
            if not late:
                for each in hooked:
                    each.register_hook(lambda *given, seen=seen: seen.append(given[-1]))
            out = model(x)
            loss = cross_entropy(out, y)
            if kind == "penalty":
                loss = loss + sum(p.pow(2).sum() for p in model.parameters())
            if kind == "shared":
                loss = loss + cross_entropy(model(x * 2), y)
            if kind == "prehook" and step:
                pool = next(node for node in _graph(out.grad_fn) if "MaxPool" in node.name())
                pool.register_prehook(_doubled[step])
            if late:
                for each in hooked:
                    each.register_hook(lambda *given, seen=seen: seen.append(given[-1]))
            loss.backward()
            seen += [p.grad.clone() for p in model.parameters()]
        values = [
            one for given in seen for one in (given if isinstance(given, tuple) else (given,))
        ]
        found.append([value.detach().cpu() for value in values])
    assert len(found[0]) == len(found[1])
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(two, one)


@pytest.mark.parametrize("zero_every", [1, 2])
def test_the_times_of_rows_grow(gpu: Any, zero_every: int) -> None:
    model = _pictures().cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(4):
        if step % zero_every == 0:
            optimizer.zero_grad()
        cross_entropy(
            model(torch.rand(4, 3, 8, 8).cuda()), torch.tensor([0, 1, 1, 0]).cuda()
        ).backward()
        optimizer.step()
    times = [row.at for row in gpu.ledger.rows if isinstance(row, OperationRow)]
    assert times == sorted(times)


def test_a_backward_pass_inside_of_another(gpu: Any) -> None:
    """What the outer one may do with a leaf, the inner one may not."""
    layer = nn.Linear(4, 3).cuda()
    inputs = torch.rand(5, 4).cuda()
    targets = torch.tensor([0, 1, 2, 0, 1]).cuda()
    inner = layer(inputs * 2).sum()
    found: list[Any] = []
    out = layer(inputs)
    out.register_hook(lambda gradient: found.extend(torch.autograd.grad(inner, [layer.weight])))
    cross_entropy(out, targets).backward()
    expected = torch.autograd.grad(cross_entropy(layer(inputs), targets), [layer.weight])
    torch.testing.assert_close(found[0], (inputs * 2).sum(0).expand(3, 4))
    torch.testing.assert_close(layer.weight.grad, expected[0])


def test_second_derivatives(gpu: Any) -> None:
    layer = nn.Linear(4, 3).cuda()
    inputs = torch.rand(5, 4).cuda().requires_grad_()
    with torch.no_grad():
        host = nn.Linear(4, 3)
        host.load_state_dict({key: value.cpu() for key, value in layer.state_dict().items()})
    found = []
    for model, x in ((layer, inputs), (host, inputs.detach().cpu().requires_grad_())):
        (gradient,) = torch.autograd.grad(model(x * 1).pow(3).sum(), x, create_graph=True)
        gradient.square().sum().backward()
        found.append([x.grad, *(p.grad for p in model.parameters())])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs)


def test_second_derivatives_of_cross_entropy(gpu: Any) -> None:
    logits = torch.rand(5, 3)
    target = torch.tensor([0, 1, 2, 0, 1])
    found = []
    for x, y in ((logits.cuda(), target.cuda()), (logits, target)):
        leaf = x.requires_grad_()
        loss = cross_entropy(leaf * leaf, y)
        (gradient,) = torch.autograd.grad(loss, leaf, create_graph=True)
        (gradient.square().sum() + loss).backward()
        found.append((gradient, leaf.grad))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs)


@pytest.mark.parametrize("mistake", ["written to", "twice"])
def test_mistakes_with_cross_entropy_are_told_as_torch_tells_them(gpu: Any, mistake: str) -> None:
    messages = []
    for device in ("cuda", "cpu"):
        target = torch.tensor([0, 1, 0]).to(device)
        loss = cross_entropy(torch.rand(3, 2).to(device).requires_grad_(), target)
        if mistake == "written to":
            target.add_(0)
        else:
            loss.backward()
        with pytest.raises(RuntimeError) as error:
            loss.backward()
        messages.append(str(error.value).replace("torch.cuda.", "torch."))
    assert messages[0] == messages[1]


def test_targets_that_do_not_exist_are_told_at_the_next_wait(gpu: Any) -> None:
    loss = cross_entropy(torch.rand(3, 2).cuda().requires_grad_(), torch.tensor([0, 1, 7]).cuda())
    with pytest.raises(RuntimeError, match="device-side assert"):
        loss.item()


def test_a_weight_that_was_changed_is_named_as_torch_names_it(gpu: Any) -> None:
    messages = []
    for device in ("cuda", "cpu"):
        layer = nn.Linear(4, 3).to(device)
        out = layer(torch.rand(5, 4).to(device).requires_grad_() * 1)
        with torch.no_grad():
            layer.weight.add_(1)
        with pytest.raises(RuntimeError, match="inplace operation") as error:
            out.sum().backward()
        messages.append(
            str(error.value).replace("torch.cuda.", "torch.").partition(", which is output")[0]
        )
    assert messages[0] == messages[1]


def test_second_derivatives_of_layers_in_sequence(gpu: Any) -> None:
    model = _net()
    inputs = torch.rand(5, 4)
    host = copy.deepcopy(model).cpu()
    found = []
    for net, x in ((model, inputs.cuda().requires_grad_()), (host, inputs.requires_grad_())):
        (gradient,) = torch.autograd.grad(net(x * 1).pow(3).sum(), x, create_graph=True)
        gradient.square().sum().backward()
        found.append([x.grad, *(p.grad for p in net.parameters() if p.grad is not None)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs)


def test_second_derivatives_of_images_in_sequence(gpu: Any) -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(2, 1, 1)
    )
    other = copy.deepcopy(model.double()).cuda()
    images = torch.rand(2, 1, 6, 6, dtype=torch.float64)
    for _ in range(2):
        found = []
        for each, given in ((model, images), (other, images.cuda())):
            leaf = given.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(each(leaf).pow(2).sum(), leaf, create_graph=True)
            found.append(
                torch.autograd.grad(
                    gradient.pow(2).sum(), [leaf, *each.parameters()], allow_unused=True
                )
            )
        for one, two in zip(*found, strict=True):
            assert (one is None) == (two is None)
            if one is not None:
                torch.testing.assert_close(two.cpu(), one)


def test_layers_in_sequence_have_a_node_each_for_whoever_looks(gpu: Any) -> None:
    seen = []
    for device in ("cuda", "cpu"):
        model = _net()[:3].to(device)
        applied = []
        out = model(torch.rand(5, 4).to(device))
        for node in _graph(out.grad_fn):
            node.register_prehook(
                lambda gradients, node=node, applied=applied: applied.append(node.name())
            )
        out.mean().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        seen.append(sorted(name for name in applied if name != "TBackward0"))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("changed", [None, 0, 2, 4, 6], ids=["input", "0", "2", "4", "6"])
def test_a_tensor_of_a_sequence_that_was_changed_is_named_as_torch_names_it(
    gpu: Any, changed: int | None
) -> None:
    """Layers behind it have their gradients by then."""
    seen = []
    layers = [nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 5), nn.ReLU()]
    host = nn.Sequential(*layers, nn.Linear(5, 2))
    values = torch.rand(5, 4)
    for device in ("cuda", "cpu"):
        model = copy.deepcopy(host).to(device)
        inputs = values.clone().to(device)
        out = model(inputs)
        with torch.no_grad():
            (inputs if changed is None else model[changed].weight).add_(1)
        try:
            out.pow(2).sum().backward()
            said = ""
        except RuntimeError as error:
            said = str(error).replace("torch.cuda.", "torch.").partition(", which is output")[0]
        seen.append((said, [None if p.grad is None else p.grad.cpu() for p in model.parameters()]))
    (said, ours), (expected, theirs) = seen
    assert said == expected
    assert bool(said) == (changed != 0)  # whose weight is not needed
    for one, two in zip(ours, theirs, strict=True):
        assert (one is None) == (two is None)
        if one is not None:
            torch.testing.assert_close(one, two)


def test_hooks_of_the_input_and_of_leaves_are_called_once(gpu: Any) -> None:
    model = _net()
    calls = []
    for step in range(2):
        inputs = torch.rand(5, 4).cuda().requires_grad_() * 2
        inputs.retain_grad()
        inputs.register_hook(lambda gradient: calls.append("input"))
        out = model(inputs)
        handles = [
            p.register_hook(lambda gradient: calls.append("leaf")) for p in model.parameters()
        ]
        if step:
            torch.autograd.grad(out.pow(2).sum(), [inputs, *model.parameters()], create_graph=True)
        else:
            out.sum().backward()
            assert inputs.grad is not None
        assert sorted(calls) == ["input"] + ["leaf"] * 6
        calls.clear()
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize("frozen", [[0], [2], [0, 2, 4]], ids=str)
def test_layers_frozen_before_backward_get_no_gradients(gpu: Any, frozen: list[int]) -> None:
    model = _net()
    out = model(torch.rand(5, 4).cuda())
    for index in frozen:
        model[index].requires_grad_(False)
    out.mean().backward()
    missing = {name for name, parameter in model.named_parameters() if parameter.grad is None}
    assert missing == {f"{index}.{name}" for index in frozen for name in ("weight", "bias")}


def test_a_result_of_relu_that_was_written_to_is_stale(gpu: Any) -> None:
    out = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU()).cuda()(torch.rand(1, 1, 4, 4).cuda())
    out.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("number", [2, 2.5, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_a_number_leaves_the_ledger_that_a_tensor_and_the_operator_leave(
    gpu: Any, number: Any, dtype: torch.dtype
) -> None:
    host = torch.ones(2, 3, dtype=dtype)
    device = host.cuda()
    rows = gpu.ledger.rows
    for name in ("add", "mul", "true_divide", "pow", "eq"):
        out = getattr(device, name)(number)
        assert torch.equal(out.cpu(), getattr(host, name)(number))
    if dtype is torch.float32:
        index = len(rows)
        assert device.add_(number) is device
        assert torch.equal(device.cpu(), host + number)
        assert rows[index].bytes == 0  # bytes
        assert rows[index].work == (dtype, host.shape, host.shape)
    index = len(rows)
    out = device + number
    assert rows[index].work == (dtype, host.shape, host.shape)
    assert rows[index].bytes == out.nbytes


def test_a_gradient_between_layers_that_somebody_keeps(gpu: Any) -> None:
    out = _net()[:3](torch.rand(5, 4).cuda())
    kept = []
    node = out.grad_fn.next_functions[1][0]
    assert node.name() == "ReluBackward0"
    node.register_prehook(lambda gradients: kept.extend(gradients))
    out.sum().backward()
    assert kept[0].add(1).shape == (5, 5)


def test_layers_in_sequence_can_be_scripted(gpu: Any) -> None:
    host = nn.Sequential(nn.Tanh(), nn.ReLU())
    x = torch.rand(5, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that scripts will go
        scripted = torch.jit.script(host)
    assert torch.equal(scripted(x), host(x))


def test_counters_of_operations_and_transforms_see_a_layer(gpu: Any) -> None:
    layer = nn.Linear(4, 3).cuda()
    inputs = torch.rand(5, 4).cuda()
    with FlopCounterMode(display=False) as flops:
        layer(inputs).sum().backward()
    assert flops.get_total_flops() == 2 * (2 * 5 * 4 * 3)
    jacobian = torch.func.jacrev(lambda x: linear(x, layer.weight, layer.bias))(inputs)
    assert jacobian.shape == (5, 3, 5, 4)
    with torch.autograd.forward_ad.dual_level():
        dual = layer(torch.autograd.forward_ad.make_dual(inputs, torch.ones_like(inputs)))
        tangent = torch.autograd.forward_ad.unpack_dual(dual).tangent
    torch.testing.assert_close(tangent, layer.weight.sum(1).expand(5, 3))
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert layer(inputs).dtype is torch.bfloat16


@pytest.mark.parametrize(
    ("name", "lists", "rest", "overload"),
    [
        ("add_", 0, (1.5,), "Scalar"),
        ("add_", 1, (), "List"),
        ("div_", 0, ([3.0, 2.0],), "ScalarList"),
        ("mul_", 1, (), "List"),
        ("addcmul_", 2, (), "Scalar"),
        ("addcmul_", 2, (0.5,), "Scalar"),
        ("addcdiv_", 2, ([0.5, 0.2],), "ScalarList"),
        ("lerp_", 1, (0.3,), "Scalar"),
        ("lerp_", 2, (), "List"),
        ("sqrt", 0, (), "default"),
    ],
)
def test_lists_of_tensors(
    gpu: Any, name: str, lists: int, rest: tuple[Any, ...], overload: str
) -> None:
    given = [[torch.rand(3, 2) + 0.1, torch.rand(4) + 0.1] for _ in range(lists + 1)]
    ours = [[tensor.cuda() for tensor in each] for each in given]
    with torch.no_grad():
        out = getattr(torch, f"_foreach_{name}")(*ours, *rest)
        (row,) = [row for row in gpu.ledger.rows if "_foreach_" in getattr(row, "name", "")]
        expected = getattr(torch, f"_foreach_{name}")(*given, *rest)
    assert row.name == f"aten._foreach_{name}.{overload}"
    for mine, theirs in zip(out, expected, strict=True):
        assert torch.equal(mine.cpu(), theirs)


def test_a_step_of_small_tensors_is_counted_like_any_other(gpu: Any) -> None:
    layer = nn.Linear(100, 100).cuda()
    optimizer = torch.optim.Adam(layer.parameters())
    layer(torch.rand(2, 100).cuda()).sum().backward()
    counted = []
    times = []
    for _ in range(4):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_stats()
        first = len(gpu.ledger.rows)
        optimizer.step()
        after = torch.cuda.memory_stats()
        names = (
            "allocation.all.allocated",
            "allocated_bytes.all.freed",
            "allocated_bytes.all.peak",
        )
        counted.append([after[name] - before[name] for name in names])
        times += [row.at for row in gpu.ledger.rows[first:]]
    assert counted[1] == counted[2] == counted[3]
    assert times == sorted(times)
    gpu.devices[0].memory.give_addresses(
        True
    )  # now each block has an address, and is taken one by one
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    optimizer.step()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] - before == counted[3][0]


def test_a_graph_from_before_a_step_is_stale(gpu: Any) -> None:
    for make in (torch.optim.Adam, torch.optim.RMSprop):
        model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 1)).cuda()
        optimizer = make(model.parameters())
        out = model(torch.rand(6, 4).cuda()).sum()
        out.backward(retain_graph=True)
        optimizer.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.backward()


def test_a_step_that_counts_on_the_device_waits_for_its_counts(gpu: Any) -> None:
    layer = nn.Linear(4, 3).cuda()
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
    for on_device in (False, True):
        layer(torch.rand(5, 4).cuda()).sum().backward()
        for state in optimizer.state.values() if on_device else ():
            state["step"] = state["step"].cuda()
        first = gpu.ledger.mark()
        optimizer.step()
        assert len(gpu.ledger.since(first).syncs()) == (
            4 if on_device else 0
        )  # two for each parameter


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam])
def test_a_gradient_that_stayed_on_the_host_is_refused_by_a_step(gpu: Any, make: Any) -> None:
    weight = nn.Parameter(torch.ones(2))
    weight.sum().backward()
    weight.data = weight.data.cuda()
    with pytest.raises(RuntimeError, match="same device"):
        make([weight]).step()


def test_lists_that_do_not_fit_are_refused(gpu: Any) -> None:
    with torch.no_grad(), pytest.raises(RuntimeError, match="same number of tensors"):
        torch._foreach_add_([torch.zeros(2).cuda(), torch.zeros(2).cuda()], [torch.zeros(2).cuda()])


@pytest.mark.parametrize("rows", [1, 3])
def test_a_traced_layer_is_torchs_own(rows: int) -> None:
    with virtual_cuda():
        model = nn.Sequential(nn.Linear(2, 2), nn.ReLU()).cuda()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            traced = torch.jit.trace(model, torch.ones(rows, 2, device="cuda"))
        assert "aten::linear" in str(traced.inlined_graph)
        x = torch.randn(rows, 2, device="cuda")
        assert torch.equal(traced(x), model(x))
