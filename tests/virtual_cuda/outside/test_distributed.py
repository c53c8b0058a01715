"""Several ranks, each with a virtual GPU of its own: collectives, DDP, fully_shard, launchers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from virtual_cuda.__main__ import _on_device

from tests.sharing import WarmPython

# Two ranks of one script: the second is a fork made before anything is opened.
START = """
import os, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
first = os.fork()
rank = 0 if first else 1
from virtual_cuda import virtual_cuda
opened = virtual_cuda(2)
gpu = opened.__enter__()
torch.cuda.set_device(rank)
store = "file://" + os.path.abspath("store")
dist.init_process_group("nccl", init_method=store, rank=rank, world_size=2)
mine = lambda *values: torch.tensor(values, device="cuda") * (rank + 1)

def raised(call, *args):
    try:
        call(*args)
    except RuntimeError as error:
        return str(error)

def losses(model, device, steps=4):
    torch.manual_seed(rank)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(steps):
        x, y = torch.randn(8, 4).to(device), torch.randint(0, 3, (8,)).to(device)
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()

def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
"""
END = """
dist.destroy_process_group()
opened.__exit__(None, None, None)
if not rank and os.waitpid(first, 0)[1]:
    sys.exit("rank 1 failed")
"""


def ran(warm_python: WarmPython, folder: Path, body: str, start: str = START) -> None:
    """Runs the script on two ranks; it asserts by itself."""
    if not hasattr(os, "fork"):
        pytest.skip("needs os.fork")
    script = folder / "script.py"
    script.write_text(start + body + END, encoding="utf-8")
    done = warm_python.run(str(script), cwd=folder, env=os.environ)
    assert done.returncode == 0, done.stderr[-3000:]


def test_collectives(warm_python: WarmPython, tmp_path: Path) -> None:
    ran(
        warm_python,
        tmp_path,
        """
assert (dist.get_backend(), dist.is_nccl_available()) == ("nccl", True)
x = mine(1.0, 2.0)
dist.all_reduce(x)
assert x.device == torch.device("cuda", rank) and x.tolist() == [3, 6]
work = dist.all_reduce(x, op=dist.ReduceOp.AVG, async_op=True)
work.wait()
assert work.is_completed() and x.tolist() == [3, 6]
(given,) = dist.all_reduce(x, async_op=True).get_future().wait()
assert given.is_cuda and given.tolist() == [6, 12]
for dtype in (torch.bfloat16, torch.float16, torch.int64):
    value = torch.full((2,), 2 * rank + 1, dtype=dtype, device="cuda")
    dist.all_reduce(value, op=dist.ReduceOp.AVG)
    assert value.dtype == dtype and value.tolist() == [2, 2]
x = mine(5.0)
dist.broadcast(x, 1)
assert x.item() == 10
parts = [torch.zeros(1, device="cuda") for _ in range(2)]
dist.all_gather(parts, mine(4.0))
assert [part.item() for part in parts] == [4, 8]
both, own = torch.zeros(2, device="cuda"), torch.zeros(1, device="cuda")
dist.all_gather_into_tensor(both, mine(4.0))
assert both.tolist() == [4, 8]
dist.reduce_scatter_tensor(own, mine(1.0, 2.0), op=dist.ReduceOp.AVG)
assert own.item() == 1.5 * (rank + 1)
dist.reduce_scatter(own, [mine(1.0), mine(3.0)])
assert own.item() == (9 if rank else 3)
dist.scatter(own, parts if rank == 0 else None)
assert own.item() == 4 * (rank + 1)
dist.all_to_all_single(both, mine(1.0, 3.0))
assert both.tolist() == ([3, 6] if rank else [1, 2])
dist.send(mine(7.0), 1) if rank == 0 else dist.recv(own, 0)
assert rank == 0 or own.item() == 7
for request in dist.batch_isend_irecv([
    dist.P2POp(dist.isend, mine(2.0), 1 - rank), dist.P2POp(dist.irecv, own, 1 - rank)
]):
    request.wait()
assert own.item() == (2 if rank else 4)
found = [None, None]
dist.all_gather_object(found, {"rank": rank})
assert found == [{"rank": 0}, {"rank": 1}]
dist.barrier(device_ids=[rank])
other = dist.new_group([0, 1])
dist.all_reduce(own, group=other)
assert own.item() == 6
assert "device type cpu" in raised(dist.all_reduce, torch.ones(2))
""",
    )


def test_the_ledger_has_the_collectives_and_the_rank_that_waits(
    warm_python: WarmPython, tmp_path: Path
) -> None:
    ran(
        warm_python,
        tmp_path,
        """
dist.barrier(device_ids=[rank])
if rank:
    time.sleep(0.5)
dist.all_reduce(torch.zeros(1000, device="cuda"))
dist.barrier(device_ids=[rank])
every = gpu.ledger.collectives()
assert [each.name for each in every] == ["barrier", "allreduce", "barrier"]
(reduced,) = gpu.ledger.collectives("allreduce")
assert (reduced.bytes, reduced.ranks, reduced.device) == (4000, 2, f"cuda:{rank}")
assert (reduced.seconds > 0.3) is (rank == 0)
assert reduced.site.function == "<module>"
assert [wait.what for wait in gpu.ledger.explicit_syncs()] == ["barrier", "barrier"]
assert not gpu.ledger.transfers()
gpu.ledger.save_trace(f"trace{rank}.json")
""",
    )


def test_data_parallel_training_has_the_losses_of_the_cpu(
    warm_python: WarmPython, tmp_path: Path
) -> None:
    ran(
        warm_python,
        tmp_path,
        """
model = DistributedDataParallel(network().cuda(), device_ids=[rank])
assert len(gpu.ledger.collectives("broadcast")) >= 1
before = len(gpu.ledger)
ours = list(losses(model, "cuda"))
during = gpu.ledger[before:]
transfers = [record for record in during if type(record).__name__ == "Transfer"]
copied = [each for each in transfers if each.direction == "to_device" and each.bytes > 128]
assert not copied, copied  # the gradients stay on the device
sizes = [each.bytes for each in gpu.ledger.collectives("allreduce")][-4:]
assert sizes == [4 * sum(p.numel() for p in model.parameters())] * 4
group = dist.new_group([0, 1], backend="gloo")
assert ours == list(losses(DistributedDataParallel(network(), process_group=group), "cpu"))
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
hooked = DistributedDataParallel(network().cuda(), device_ids=[rank], gradient_as_bucket_view=True)
hooked.register_comm_hook(None, bf16_compress_hook)
assert abs(list(losses(hooked, "cuda"))[-1] - ours[-1]) < 0.05
""",
    )


@pytest.mark.slow
def test_batch_statistics_are_shared(warm_python: WarmPython, tmp_path: Path) -> None:
    ran(
        warm_python,
        tmp_path,
        """
torch.manual_seed(0)
whole, weights = torch.randn(6, 3, 5), torch.randn(6, 3, 5)
part = slice(0, 2) if rank == 0 else slice(2, 6)
alone = torch.nn.BatchNorm1d(3)
layer = torch.nn.SyncBatchNorm.convert_sync_batchnorm(torch.nn.BatchNorm1d(3)).cuda()
x, y = whole.clone().requires_grad_(), whole[part].cuda().requires_grad_()
(alone(x) * weights).sum().backward()
out = layer(y)
(out * weights[part].cuda()).sum().backward()
close = lambda a, b: torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-5)
close(y.grad, x.grad[part])
close(layer.running_mean, alone.running_mean)
close(layer.running_var, alone.running_var)
dist.all_reduce(layer.weight.grad)
close(layer.weight.grad, alone.weight.grad)
""",
    )


@pytest.mark.slow
def test_a_sharded_model_trains_as_a_whole_one(warm_python: WarmPython, tmp_path: Path) -> None:
    ran(
        warm_python,
        tmp_path,
        """
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
model = network().cuda()
fully_shard(model[0])
fully_shard(model)
whole = DistributedDataParallel(network().cuda(), device_ids=[rank])
for ours, expected in zip(list(losses(model, "cuda")), list(losses(whole, "cuda"))):
    assert abs(ours - expected) < 1e-5
full = model.state_dict()["0.weight"].full_tensor()
torch.testing.assert_close(full, whole.module[0].weight.detach(), rtol=1e-4, atol=1e-5)
names = {each.name for each in gpu.ledger.collectives()}
assert {"all_gather_into_tensor", "reduce_scatter_tensor"} <= names
mesh = init_device_mesh("cuda", (2,))
table = torch.arange(8.0, device="cuda").view(4, 2)
cut = distribute_tensor(table, mesh, [Shard(0)])
assert torch.equal((cut @ cut.T).full_tensor(), table @ table.T)
assert torch.equal(cut.redistribute(mesh, [Replicate()]).to_local(), table)
""",
    )


# ---- how ranks get the device --------------------------------------------------------------------


@pytest.mark.slow
def test_a_mesh_chooses_each_ranks_device_and_draws_for_its_shards(
    warm_python: WarmPython, tmp_path: Path
) -> None:
    chosen_by_hand = "torch.cuda.set_device(rank)\n"
    assert chosen_by_hand in START
    ran(
        warm_python,
        tmp_path,
        """
os.environ["LOCAL_RANK"] = str(rank)
assert not torch.cuda.is_initialized()
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, Replicate, randn
from torch.distributed.fsdp import fully_shard
mesh = init_device_mesh("cuda", (2,))
assert torch.cuda.current_device() == rank
torch.manual_seed(0)
drawn = randn(8, device_mesh=mesh, placements=[Shard(0)])
whole = drawn.full_tensor()
assert (drawn.to_local().device.index, whole.shape) == (rank, (8,))
assert len(set(whole.tolist())) == 8
assert len(set(randn(4, device_mesh=mesh, placements=[Replicate()]).to_local().tolist())) == 4
with torch.device("meta"):
    model = network()
fully_shard(model, mesh=mesh)
model.to_empty(device="cuda")
for layer in model:
    if hasattr(layer, "reset_parameters"):
        layer.reset_parameters()
found = list(losses(model, "cuda"))
assert all(0 < each < 5 for each in found), found
""",
        START.replace(chosen_by_hand, ""),
    )


def test_commands_that_run_python_get_the_device(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    python = sys.executable
    opening = ["--child", "--gpus", "2"]
    added = ["-m", "virtual_cuda", *opening]
    for before, after in (
        (
            [python, "-u", str(script), "--lr", "1"],
            [python, "-u", *added, str(script), "--lr", "1"],
        ),
        ((python, "-W", "error", "train.py"), [python, "-W", "error", *added, "train.py"]),
        ([python, "-m", "pack.train"], [python, *added, "-m", "pack.train"]),
        ([python, "-c", "pass", "-x"], [python, *added, "-c", "pass", "-x"]),
    ):
        assert _on_device(before, str(tmp_path), opening) == after
    for same in (
        [python, "-m", "virtual_cuda", "train.py"],
        [python, "missing.py"],
        [python],
        ["/bin/echo", "train.py"],
        f"{python} train.py",
    ):
        assert _on_device(same, str(tmp_path), opening) is same


TRAIN = """
import os, torch, torch.distributed as dist
dist.init_process_group("nccl")
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
x = torch.ones(2, device="cuda")
dist.all_reduce(x)
line = f"rank {rank} of {torch.cuda.device_count()}: {x.sum().item()} on {x.device}\\n"
print(line, end="", flush=True)
dist.destroy_process_group()
"""
LAUNCHED = {
    "the launcher on the device": [
        "virtual_cuda",
        "--gpus",
        "2",
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
    ],
    "the device in each rank": [
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "-m",
        "virtual_cuda",
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("words", LAUNCHED.values(), ids=LAUNCHED)
def test_torchrun(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    command = [sys.executable, "-m", *words, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    said = sorted(line for line in done.stdout.splitlines() if line)
    assert said == ["rank 0 of 2: 4.0 on cuda:0", "rank 1 of 2: 4.0 on cuda:1"]
    assert done.stderr.count("What each line did on the virtual GPU of rank 0 of 2") == 1
    assert "did nothing" not in done.stderr
    assert "1 collective of 8 bytes" in done.stderr


SPAWNED = """
import sys, torch, torch.multiprocessing as mp
from virtual_cuda import virtual_cuda

def work(rank, count):
    print(torch.cuda.device_count(), torch.ones(1, device=f"cuda:{rank}").device, flush=True)

if __name__ == "__main__":
    with virtual_cuda(count := 2, memory="1 GiB"):
        mp.spawn(work, (count,), nprocs=1)
"""


@pytest.mark.slow
def test_spawned_processes_have_the_device(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SPAWNED, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert (done.stdout, done.returncode) == ("2 cuda:0\n", 0), done.stderr[-2000:]
