"""What torch imports, and need not import, while a device is open."""

from __future__ import annotations

import os
from pathlib import Path

from tests.sharing import WarmPython

START = """
import sys, warnings
import torch, torch.utils.checkpoint
from torch.optim import SGD, Adam
from virtual_cuda import real_device, virtual_cuda
from virtual_cuda.hooks import no_accelerator

MAKE_GRADS = torch.autograd._make_grads

def functions():
    found = [torch.utils.checkpoint.checkpoint, MAKE_GRADS]
    for kind in (torch.optim.Optimizer, SGD, Adam):
        found += [f for f in vars(kind).values() if hasattr(f, "__code__")]
    return [(f, f.__code__, set(vars(f))) for f in found]

def train(device):
    layers = [torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1)]
    model = torch.nn.Sequential(*layers).to(device)
    for kind in (SGD, Adam):
        optimizer = kind(model.parameters(), lr=0.1)
        before = [p.detach().clone() for p in model.parameters()]
        x = torch.ones(4, 3, device=device)
        torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        optimizer.load_state_dict(optimizer.state_dict())
        assert not all(map(torch.equal, before, model.parameters()))
        assert torch.is_grad_enabled() and all(p.requires_grad for p in model.parameters())
"""


def ran(warm_python: WarmPython, folder: Path, *lines: str) -> None:
    """Runs a script in a fresh process with torch loaded; it asserts by itself."""
    script = folder / "script.py"
    script.write_text(START + "\n".join(lines), encoding="utf-8")
    done = warm_python.run(str(script), cwd=folder, env=os.environ)
    assert done.returncode == 0, done.stderr[-1500:]


def test_training_imports_nothing_that_only_compiled_or_distributed_code_needs(
    warm_python: WarmPython, tmp_path: Path
) -> None:
    ran(
        warm_python,
        tmp_path,
        "before = functions()",
        "finders = len(sys.meta_path)",
        "with virtual_cuda(): train('cuda')",
        "with virtual_cuda():",
        "    x = torch.ones(3, device='cuda', requires_grad=True)",
        "    (x * 2).backward(torch.ones(3, device='cuda'))",
        (
            "    assert torch.autograd.grad(x.sum(), x, torch.tensor(3.0, "
            "device='cuda'))[0].tolist() == [3.0] * 3"
        ),
        (
            "    assert torch.func.grad(lambda v: (v * v).sum())(x.detach()).tolist() == "
            "x.grad.tolist() == [2.0] * 3"
        ),
        "    try: (x * 2).backward(torch.ones(2, device='cuda'))",
        (
            "    except RuntimeError as error: assert 'Mismatch in shape: grad_output[0]' in "
            "str(error)"
        ),
        "    else: raise AssertionError",
        "with virtual_cuda(), torch.inference_mode():",
        (
            "    assert (torch.ones(2, 3, device='cuda') @ torch.ones(3, device='cuda')).tolist() "
            "== [3.0] * 2"
        ),
        "with no_accelerator(): train('cpu')",
        "with real_device('cpu'): train('cpu')",
        "with virtual_cuda(), torch.profiler.profile(): torch.ones(2, device='cuda').sum().item()",
        (
            "unneeded = 'torch._dynamo torch._inductor torch.distributed.tensor torch.onnx sympy "
            "networkx'.split()"
        ),
        "assert not [name for name in unneeded if name in sys.modules]",
        "assert not hasattr(torch.optim.Optimizer.zero_grad.__wrapped__, '__dynamo_disable')",
        "assert [(f, c) for f, c, _ in before] == [(f, f.__code__) for f, _, _ in before]",
        "assert len(sys.meta_path) <= finders + 1",
    )


def test_who_imports_dynamo_gets_it_and_torch_uses_it(
    warm_python: WarmPython, tmp_path: Path
) -> None:
    ran(
        warm_python,
        tmp_path,
        "before = functions()",
        "with virtual_cuda():",
        "    train('cuda')",
        (
            "    assert SGD.zero_grad.__code__ is not dict((f, c) for f, c, _ in "
            "before)[SGD.zero_grad]"
        ),
        "    assert SGD.zero_grad.__wrapped__.__dynamo_disable is SGD.zero_grad.__wrapped__",
        "    import torch._dynamo.config as config",
        "    assert config is sys.modules['torch._dynamo.config'] is torch._dynamo.config",
        "    assert all(f.__code__ is code for f, code, _ in before)",
        "    train('cuda')",
        "    assert SGD.zero_grad.__wrapped__.__dynamo_disable is not SGD.zero_grad.__wrapped__",
        "assert all(f.__code__ is code for f, code, _ in before)",
        "graphs = []",
        "def step(x):",
        "    return x.sin() + 1",
        (
            "compiled = torch.compile(step, backend=lambda graph, inputs: graphs.append(graph) or "
            "graph.forward)"
        ),
        "assert torch.equal(compiled(torch.ones(3)), torch.ones(3).sin() + 1) and len(graphs) == 1",
        "with virtual_cuda():",
        "    assert all(f.__code__ is code for f, code, _ in before)",
        "    train('cuda')",
    )


def test_a_stand_in_that_is_asked_for_more_gives_what_dynamo_has(
    warm_python: WarmPython, tmp_path: Path
) -> None:
    ran(
        warm_python,
        tmp_path,
        "with virtual_cuda():",
        "    found = torch._without_dynamo.is_compiling",
        "    assert found is sys.modules['torch._dynamo'].is_compiling",
        "    train('cuda')",
        "assert not hasattr(torch, '_without_dynamo')",
    )


def test_distributed_tensors_work_after_the_device(warm_python: WarmPython, tmp_path: Path) -> None:
    """torch's C++ looks for their class once, and the device is the first to make it look."""
    ran(
        warm_python,
        tmp_path,
        "if not torch.distributed.is_available(): sys.exit()",
        "with virtual_cuda():",
        "    torch.ones(2, device='cuda').sum().item()",
        "    assert 'torch.distributed.tensor' not in sys.modules",
        "import torch.distributed.tensor as dt",
        "from torch.distributed.device_mesh import init_device_mesh",
        (
            "torch.distributed.init_process_group('gloo', store=torch.distributed.HashStore(), "
            "rank=0, world_size=1)"
        ),
        "mesh = init_device_mesh('cpu', (1,))",
        "class Own(dt.DTensor):",
        "    seen = []",
        "    @classmethod",
        "    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):",
        "        cls.seen.append(func)",
        "        return super().__torch_dispatch__(func, types, args, kwargs)",
        "for place in (dt.Shard(0), dt.Replicate()):",
        (
            "    x = dt.distribute_tensor(torch.arange(4.0).reshape(2, 2), mesh, "
            "[place]).requires_grad_()"
        ),
        "    y = (x @ x + 1).detach().sum() + x.sum()",
        "    y.backward()",
        (
            "    assert type(x.grad) is dt.DTensor and torch.equal(x.grad.full_tensor(), "
            "torch.ones(2, 2))"
        ),
        "    assert y.full_tensor().item() == 32.0",
        "    own = Own(x.to_local().detach(), x._spec, requires_grad=False)",
        "    assert isinstance(own + 1, dt.DTensor) and isinstance(x, dt.DTensor)",
        "    assert len(Own.seen) or torch.__version__ < '2.12'  # which never asks the class",
        "assert not isinstance(torch.ones(1), dt.DTensor)",
        "with virtual_cuda():",
        "    train('cuda')",
        "    assert not isinstance(torch.ones(1, device='cuda'), dt.DTensor)",
        "torch.distributed.destroy_process_group()",
    )


def test_a_module_that_imports_dtensor_while_the_device_is_open(
    warm_python: WarmPython, tmp_path: Path
) -> None:
    ran(
        warm_python,
        tmp_path,
        "with virtual_cuda():",
        "    torch.ones(2, device='cuda') + 1",
        "    import torch.testing, torch.distributed.tensor",
        (
            "    torch.testing.assert_close(torch.ones(2, device='cuda'), torch.ones(2, "
            "device='cuda'))"
        ),
        "assert 'torch.distributed.tensor' in sys.modules",
    )


def test_tables_of_torch_testing_hold_the_functions_that_programs_call(
    warm_python: WarmPython, tmp_path: Path
) -> None:
    ran(
        warm_python,
        tmp_path,
        "with virtual_cuda():",
        "    from torch.testing._internal.opinfo.definitions.fft import op_db",
        "    x = torch.ones(8, device='cuda', dtype=torch.float16)",
        "    assert op_db[0].name == 'fft.fft' and op_db[0].op(x).dtype is torch.complex32",
        "assert torch.equal(op_db[0].op(torch.ones(2)), torch.tensor([2, 0j]))",
    )
