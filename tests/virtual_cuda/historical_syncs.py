"""Synchronisations that public projects have removed or reported: each as it was, and mended.

The programs are written for this table and as small as the mistake allows; what they stand for is
named by project and pull request (or issue), where it is known. Each is a function of a few steps
of a loop; what it makes beforehand, `prepare` gives it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch import nn

ROUNDS: Final = 6
Program = Callable[[Any], Any]


class Bug(NamedTuple):
    """A mistake: the program with it and without it, and the budget that tells them apart."""

    name: str
    source: str  # project and number of the pull request or issue; "" where only the kind is known
    prepare: Callable[[], Any]
    before: Program
    after: Program
    budget: dict[str, Any]


BUGS: Final[list[Bug]] = []


def bug(
    name: str, source: str, prepare: Callable[[], Any], **budget: Any
) -> Callable[[type], type]:
    """A decorator: adds the `before` and `after` of a class to the table."""

    def add(pair: type) -> type:
        BUGS.append(Bug(name, source, prepare, pair.before, pair.after, budget))  # type: ignore[attr-defined]
        return pair

    return add


def on_device(*shape: int) -> torch.Tensor:
    return torch.rand(*shape).cuda()


def linear() -> nn.Linear:
    return nn.Linear(16, 4).cuda()


# ---- reading values ------------------------------------------------------------------------------


@bug(
    "loss read every step",
    "meta-pytorch/torchtune#522",
    lambda: (linear(), on_device(8, 16)),
    max_syncs=1,
)
class LossEveryStep:
    @staticmethod
    def before(made: Any) -> Any:
        model, x = made
        logged = []
        for step in range(ROUNDS):
            loss = model(x).square().mean().item()
            if step % ROUNDS == 0:
                logged.append(loss)
        return logged

    @staticmethod
    def after(made: Any) -> Any:
        model, x = made
        logged = []
        for step in range(ROUNDS):
            loss = model(x).square().mean()
            if step % ROUNDS == 0:
                logged.append(loss.item())
        return logged


@bug(
    "loss read twice a step",
    "openvdb/fvdb-reality-capture#144",
    lambda: on_device(8, 16),
    max_syncs=ROUNDS,
)
class LossTwice:
    @staticmethod
    def before(x: Any) -> Any:
        for _ in range(ROUNDS):
            loss = x.square().mean()
            bar = round(loss.item(), 3)
            x = x * 0.5
            log = round(loss.item(), 4)
        return bar, log

    @staticmethod
    def after(x: Any) -> Any:
        for _ in range(ROUNDS):
            loss = x.square().mean()
            x = x * 0.5
            log = loss.item()
            bar = round(log, 3)
        return bar, round(log, 4)


@bug(
    "lengths summed on the device",
    "sgl-project/sglang#7563",
    lambda: (on_device(4).long(), [0, 0, 0, 0]),
    max_syncs=0,
)
class SumOfLengths:
    @staticmethod
    def before(made: Any) -> Any:
        lengths, _ = made
        return [lengths.sum().item() + torch.max(lengths).item() for _ in range(ROUNDS)]

    @staticmethod
    def after(made: Any) -> Any:
        _, on_host = made
        return [sum(on_host) + max(on_host) for _ in range(ROUNDS)]


@bug(
    "mask tested for each token",
    "huggingface/transformers#43088",
    lambda: torch.ones(2, 8).cuda(),
    max_syncs=1,
)
class MaskOfEachToken:
    @staticmethod
    def before(mask: Any) -> Any:
        for _ in range(ROUNDS):
            skipped = bool(mask.all())
            mask = torch.cat([mask, mask.new_ones(2, 1)], dim=1)
        return skipped

    @staticmethod
    def after(mask: Any) -> Any:
        skipped = bool(mask.all())  # only ones are added below
        for _ in range(ROUNDS):
            mask = torch.cat([mask, mask.new_ones(2, 1)], dim=1)
        return skipped


@bug(
    "control flow on sigmas of the device",
    "AUTOMATIC1111/stable-diffusion-webui#15823",
    lambda: (torch.linspace(1, 0, ROUNDS), on_device(2, 8)),
    max_syncs=1,
)
class SigmasOnDevice:
    @staticmethod
    def before(made: Any) -> Any:
        sigmas, x = made
        for sigma in sigmas.cuda():
            if sigma == 0:
                break
            x = x - sigma * x
        return x

    @staticmethod
    def after(made: Any) -> Any:
        sigmas, x = made
        for sigma in sigmas:
            if sigma == 0:
                break
            x = x - sigma.item() * x
        return x


@bug(
    "validation of weights", "meta-pytorch/torchrec#408", lambda: torch.ones(8).cuda(), max_syncs=0
)
class ValidWeights:
    @staticmethod
    def before(weights: Any) -> Any:
        total = torch.zeros((), device="cuda")
        for _ in range(ROUNDS):
            valid = weights > 0
            if torch.any(valid):
                total += weights.sum()
        return total

    @staticmethod
    def after(weights: Any) -> Any:
        total = torch.zeros((), device="cuda")
        for _ in range(ROUNDS):
            total += torch.where(weights > 0, weights, 0).sum()
        return total


@bug("nan check in a metric", "Lightning-AI/torchmetrics#2943", lambda: on_device(8), max_syncs=0)
class NanCheck:
    @staticmethod
    def before(x: Any) -> Any:
        total = torch.zeros((), device="cuda")
        for _ in range(ROUNDS):
            nans = torch.isnan(x)
            if nans.any():
                raise ValueError("nan")
            total += x.sum()
        return total

    @staticmethod
    def after(x: Any) -> Any:
        total = torch.zeros((), device="cuda")
        for _ in range(ROUNDS):
            total += x.sum()
        return total


@bug(
    "arguments of a distribution validated",
    "Toni-SM/skrl#233",
    lambda: (on_device(8), torch.ones(8).cuda()),
    max_syncs=0,
)
class ValidatedDistribution:
    @staticmethod
    def before(made: Any) -> Any:
        mean, deviation = made
        return [torch.distributions.Normal(mean, deviation).log_prob(mean) for _ in range(ROUNDS)]

    @staticmethod
    def after(made: Any) -> Any:
        mean, deviation = made
        return [
            torch.distributions.Normal(mean, deviation, validate_args=False).log_prob(mean)
            for _ in range(ROUNDS)
        ]


@bug("gradient norm read for a threshold", "", lambda: (linear(), on_device(8, 16)), max_syncs=0)
class NormForThreshold:
    @staticmethod
    def before(made: Any) -> Any:
        model, x = made
        for _ in range(ROUNDS):
            model(x).sum().backward()
            norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
            if float(norm) > 1:
                for p in model.parameters():
                    p.grad /= norm

    @staticmethod
    def after(made: Any) -> Any:
        model, x = made
        for _ in range(ROUNDS):
            model(x).sum().backward()
            norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
            for p in model.parameters():
                p.grad /= norm.clamp(min=1)


@bug(
    "norm of each gradient read",
    "deepspeedai/DeepSpeed#4436",
    lambda: [on_device(8) for _ in range(ROUNDS)],
    max_syncs=0,
)
class NormOfEach:
    @staticmethod
    def before(grads: Any) -> Any:
        total = 0.0
        for grad in grads:
            total += grad.norm().item() ** 2
        return torch.full((), total**0.5)

    @staticmethod
    def after(grads: Any) -> Any:
        norms = torch.stack([grad.norm() for grad in grads])
        return norms.norm()


@bug(
    "norm tested for nan and inf",
    "pytorch/pytorch#61042",
    lambda: [on_device(8) for _ in range(ROUNDS)],
    max_syncs=0,
)
class NormTested:
    @staticmethod
    def before(grads: Any) -> Any:
        for grad in grads:
            norm = grad.norm()
            if norm.isnan() or norm.isinf():
                raise RuntimeError("the norm is not finite")
            coefficient = 1 / (norm + 1e-6)
            if coefficient < 1:
                grad.mul_(coefficient)
        return grads

    @staticmethod
    def after(grads: Any) -> Any:
        for grad in grads:
            coefficient = 1 / (grad.norm() + 1e-6)
            grad.mul_(coefficient.clamp(max=1))
        return grads


@bug(
    "a tensor for alpha",
    "Koratahiu/Advanced_Optimizers#5",
    lambda: (on_device(8), on_device(8)),
    max_syncs=0,
)
class TensorForAlpha:
    @staticmethod
    def before(made: Any) -> Any:
        weight, grad = made
        for _ in range(ROUNDS):
            share = torch.dot(weight, grad) / torch.dot(weight, weight)
            grad = grad.sub(weight, alpha=share)
        return grad

    @staticmethod
    def after(made: Any) -> Any:
        weight, grad = made
        for _ in range(ROUNDS):
            share = torch.dot(weight, grad) / torch.dot(weight, weight)
            grad = grad.sub(weight * share)
        return grad


@bug(
    "rows tested before they are filled",
    "lucidrains/x-transformers#355",
    lambda: (on_device(4, 8), torch.tensor([True, False, False, True]).cuda()),
    max_syncs=0,
)
class RowsTested:
    @staticmethod
    def before(made: Any) -> Any:
        x, is_masked = made
        for _ in range(ROUNDS):
            if is_masked.any():
                x = x.masked_fill(is_masked[:, None], 0.0)
        return x

    @staticmethod
    def after(made: Any) -> Any:
        x, is_masked = made
        for _ in range(ROUNDS):
            x = x.masked_fill(is_masked[:, None], 0.0)
        return x


@bug(
    "learning rate read by its schedule",
    "pytorch/pytorch#133663",
    lambda: (torch.ones(()).cuda(), torch.full((), 0.5).cuda()),
    max_syncs=0,
)
class ReadBySchedule:
    @staticmethod
    def before(made: Any) -> Any:
        rate, factor = made
        for _ in range(ROUNDS):
            rate.fill_((rate * factor).item())
        return rate

    @staticmethod
    def after(made: Any) -> Any:
        rate, factor = made
        for _ in range(ROUNDS):
            rate.copy_(rate * factor)
        return rate


def trained_once() -> Any:
    """A model with gradients, and its optimizer, which has a state."""
    model = linear()
    optimizer = torch.optim.AdamW(model.parameters())
    model(on_device(8, 16)).sum().backward()
    optimizer.step()
    return model, optimizer


@bug(
    "an optimizer's counters moved with its state",
    "PrimeIntellect-ai/prime-rl#3258",
    trained_once,
    max_syncs=0,
)
class CountersMoved:
    @staticmethod
    def before(made: Any) -> Any:
        model, optimizer = made
        for state in optimizer.state.values():
            for name, value in state.items():
                state[name] = value.to("cuda", non_blocking=True)
        for _ in range(ROUNDS):
            optimizer.step()
        return list(model.parameters())

    @staticmethod
    def after(made: Any) -> Any:
        model, optimizer = made
        for state in optimizer.state.values():
            for name, value in state.items():
                if value.dim():
                    state[name] = value.to("cuda", non_blocking=True)
        for _ in range(ROUNDS):
            optimizer.step()
        return list(model.parameters())


@bug(
    "longest sequence read in each layer",
    "unslothai/unsloth#4243",
    lambda: (torch.tensor([3, 5, 2]).cuda(), on_device(3, 8)),
    max_syncs=1,
)
class LongestInEachLayer:
    @staticmethod
    def before(made: Any) -> Any:
        lengths, x = made
        for _ in range(ROUNDS):
            x = x[:, : lengths.max().item()] * 2
        return x

    @staticmethod
    def after(made: Any) -> Any:
        lengths, x = made
        longest = lengths.max().item()
        for _ in range(ROUNDS):
            x = x[:, :longest] * 2
        return x


@bug(
    "Python's max of a tensor",
    "ecmwf/WeatherGenerator#1531",
    lambda: torch.tensor([3, 5, 2, 4]).cuda(),
    max_syncs=0,
)
class MaxOfPython:
    @staticmethod
    def before(lengths: Any) -> Any:
        return max(lengths)

    @staticmethod
    def after(lengths: Any) -> Any:
        return lengths.max()


@bug(
    "slices with bounds on the device",
    "tier4/autoware-ml#122",
    lambda: (torch.arange(ROUNDS + 1).cuda(), on_device(ROUNDS, 4)),
    max_syncs=1,
)
class BoundsOnDevice:
    @staticmethod
    def before(made: Any) -> Any:
        offsets, x = made
        return torch.stack([x[offsets[i] : offsets[i + 1]].sum() for i in range(ROUNDS)])

    @staticmethod
    def after(made: Any) -> Any:
        offsets, x = made
        bounds = offsets.tolist()
        return torch.stack([x[bounds[i] : bounds[i + 1]].sum() for i in range(ROUNDS)])


@bug(
    "loss read before the next step is queued",
    "Nerogar/OneTrainer#1608",
    lambda: on_device(8, 16),
    max_syncs=1,
)
class LossReadLate:
    @staticmethod
    def before(x: Any) -> Any:
        losses = []
        for step in range(ROUNDS):
            loss = (x * step).square().mean()
            losses.append(loss.item())
        return losses

    @staticmethod
    def after(x: Any) -> Any:
        kept = torch.empty(ROUNDS, pin_memory=True)
        for step in range(ROUNDS):
            loss = (x * step).square().mean()
            kept[step].copy_(loss, non_blocking=True)
        torch.cuda.current_stream().synchronize()
        return kept.tolist()


# ---- results whose size depends on values --------------------------------------------------------


@bug(
    "time step looked up by nonzero",
    "huggingface/diffusers#11696",
    lambda: (torch.arange(ROUNDS).cuda(), on_device(2, 8)),
    max_syncs=0,
)
class StepByNonzero:
    @staticmethod
    def before(made: Any) -> Any:
        steps, x = made
        for step in steps:
            x = x * (steps == step).nonzero()[0].item()
        return x

    @staticmethod
    def after(made: Any) -> Any:
        steps, x = made
        for index in range(len(steps)):
            x = x * index
        return x


@bug(
    "one lookup for each sample",
    "huggingface/diffusers#9417",
    lambda: (torch.arange(16).cuda(), torch.arange(8).cuda()),
    max_syncs=0,
)
class LookupOfEach:
    @staticmethod
    def before(made: Any) -> Any:
        schedule, steps = made
        return torch.stack([(schedule == step).nonzero()[0, 0] for step in steps])

    @staticmethod
    def after(made: Any) -> Any:
        schedule, steps = made
        return (schedule[None] == steps[:, None]).int().argmax(dim=1)


@bug(
    "repeats on the device without output_size",
    "pytorch/torchtitan#3274",
    lambda: (torch.full((4,), 2).cuda(), torch.arange(4).cuda()),
    max_syncs=0,
)
class RepeatWithoutSize:
    @staticmethod
    def before(made: Any) -> Any:
        counts, experts = made
        return [torch.repeat_interleave(experts, counts) for _ in range(ROUNDS)]

    @staticmethod
    def after(made: Any) -> Any:
        counts, experts = made
        return [torch.repeat_interleave(experts, counts, output_size=8) for _ in range(ROUNDS)]


@bug(
    "loss of a masked selection",
    "",
    lambda: (on_device(8, 16), torch.ones(8).bool().cuda()),
    max_syncs=0,
)
class MaskedSelection:
    @staticmethod
    def before(made: Any) -> Any:
        losses, mask = made
        return [losses[mask].mean() for _ in range(ROUNDS)]

    @staticmethod
    def after(made: Any) -> Any:
        losses, mask = made
        weights = mask[:, None].to(losses.dtype)
        return [(losses * weights).sum() / weights.expand_as(losses).sum() for _ in range(ROUNDS)]


@bug("histogram of classes by unique", "", lambda: torch.arange(8).cuda() % 4, max_syncs=0)
class ClassesByUnique:
    @staticmethod
    def before(labels: Any) -> Any:
        return [torch.unique(labels, return_counts=True)[1] for _ in range(ROUNDS)]

    @staticmethod
    def after(labels: Any) -> Any:
        return [torch.nn.functional.one_hot(labels, 4).sum(0) for _ in range(ROUNDS)]


@bug(
    "nonzero where the count is known",
    "pytorch/pytorch#131256",
    lambda: (torch.arange(8).cuda() % 2 == 0, 4),
    max_syncs=0,
)
class CountIsKnown:
    @staticmethod
    def before(made: Any) -> Any:
        mask, _ = made
        return [torch.nonzero(mask).squeeze(1) for _ in range(ROUNDS)]

    @staticmethod
    def after(made: Any) -> Any:
        mask, count = made
        return [
            torch.argsort(mask.to(torch.int8), stable=True, descending=True)[:count]
            for _ in range(ROUNDS)
        ]


@bug(
    "intersections of the boxes that meet",
    "pytorch/vision#9518",
    lambda: (on_device(8), on_device(8)),
    max_syncs=0,
)
class BoxesThatMeet:
    @staticmethod
    def before(made: Any) -> Any:
        left, right = made
        for _ in range(ROUNDS):
            areas = torch.zeros_like(left)
            mask = right > left
            areas[mask] = right[mask] - left[mask]
        return areas

    @staticmethod
    def after(made: Any) -> Any:
        left, right = made
        for _ in range(ROUNDS):
            areas = (right - left).clamp(min=0)
        return areas


@bug(
    "positions written behind a mask",
    "huggingface/transformers#47703",
    lambda: (
        torch.zeros(2, 8, dtype=torch.int64).cuda(),
        torch.arange(8).cuda() < 5,
        torch.arange(10).reshape(2, 5).cuda(),
    ),
    max_syncs=0,
)
class WrittenBehindMask:
    @staticmethod
    def before(made: Any) -> Any:
        positions, mask, values = made
        for _ in range(ROUNDS):
            positions[:, mask] = values
        return positions

    @staticmethod
    def after(made: Any) -> Any:
        positions, mask, values = made
        for _ in range(ROUNDS):
            positions.masked_scatter_(mask.expand_as(positions), values)
        return positions


# ---- copies --------------------------------------------------------------------------------------


@bug(
    "list made into a tensor on the device",
    "vllm-project/vllm#2207",
    lambda: [1, 2, 3],
    max_syncs=0,
)
class ListOnDevice:
    @staticmethod
    def before(indices: Any) -> Any:
        return [torch.tensor(indices, device="cuda") for _ in range(ROUNDS)]

    @staticmethod
    def after(indices: Any) -> Any:
        made = []
        for _ in range(ROUNDS):
            made.append(torch.tensor(indices, pin_memory=True).to("cuda", non_blocking=True))
        return made


@bug("a tensor made to clamp", "vllm-project/vllm#51458", lambda: on_device(8), max_syncs=0)
class TensorToClamp:
    @staticmethod
    def before(x: Any) -> Any:
        return [torch.minimum(x, torch.tensor(0.5, device="cuda")) for _ in range(ROUNDS)]

    @staticmethod
    def after(x: Any) -> Any:
        return [torch.clamp(x, max=0.5) for _ in range(ROUNDS)]


@bug(
    "table on the host, index on the device",
    "huggingface/diffusers#13969",
    lambda: (torch.rand(8), torch.tensor(3).cuda()),
    max_syncs=0,
)
class TableOnHost:
    @staticmethod
    def before(made: Any) -> Any:
        table, step = made
        return [table[step] for _ in range(ROUNDS)]

    @staticmethod
    def after(made: Any) -> Any:
        table, _ = made
        return [table[3] for _ in range(ROUNDS)]


@bug(
    "predictions copied for the log of each batch",
    "",
    lambda: (linear(), on_device(8, 16)),
    max_syncs=1,
    max_transfers="1 KiB",
)
class CopiedForLog:
    @staticmethod
    def before(made: Any) -> Any:
        model, x = made
        return torch.cat([model(x).detach().cpu() for _ in range(ROUNDS)])

    @staticmethod
    def after(made: Any) -> Any:
        model, x = made
        return torch.cat([model(x).detach() for _ in range(ROUNDS)]).cpu()


@bug(
    "batches from memory that is not pinned",
    "vllm-project/vllm-ascend#4113",
    lambda: [torch.rand(8, 16) for _ in range(ROUNDS)],
    max_syncs=0,
)
class NotPinned:
    @staticmethod
    def before(batches: Any) -> Any:
        loader = torch.utils.data.DataLoader(batches, batch_size=None)
        return [batch.to("cuda") for batch in loader]

    @staticmethod
    def after(batches: Any) -> Any:
        loader = torch.utils.data.DataLoader(batches, batch_size=None, pin_memory=True)
        return [batch.to("cuda", non_blocking=True) for batch in loader]


@bug(
    "one number many times from a list",
    "sgl-project/sglang#29415",
    lambda: 4,
    max_syncs=0,
)
class NumberFromList:
    @staticmethod
    def before(count: Any) -> Any:
        return [torch.tensor([7] * count, device="cuda") for _ in range(ROUNDS)]

    @staticmethod
    def after(count: Any) -> Any:
        return [torch.full((count,), 7, device="cuda") for _ in range(ROUNDS)]


@bug(
    "statistics kept on the host",
    "Nerogar/OneTrainer#1608",
    lambda: (torch.rand(16), on_device(8, 16)),
    max_syncs=1,
    max_transfers="64 bytes",
)
class StatisticsOnHost:
    @staticmethod
    def before(made: Any) -> Any:
        mean, x = made
        for _ in range(ROUNDS):
            x = x - mean.to("cuda")
        return x

    @staticmethod
    def after(made: Any) -> Any:
        mean, x = made
        mean = mean.to("cuda")
        for _ in range(ROUNDS):
            x = x - mean
        return x


# ---- left in ------------------------------------------------------------------------------------


@bug("synchronize left in", "ray-project/ray#19400", lambda: on_device(8), max_syncs=0)
class SynchronizeLeft:
    @staticmethod
    def before(x: Any) -> Any:
        for _ in range(ROUNDS):
            x = x * 2
            torch.cuda.current_stream().synchronize()
        return x

    @staticmethod
    def after(x: Any) -> Any:
        for _ in range(ROUNDS):
            x = x * 2
        return x


@bug(
    "synchronize for a measured time",
    "HuguesTHOMAS/KPConv-PyTorch#22",
    lambda: (linear(), on_device(8, 16)),
    max_syncs=0,
)
class SynchronizeForTimes:
    @staticmethod
    def before(made: Any) -> Any:
        model, x = made
        for _ in range(ROUNDS):
            model(x).sum().backward()
            torch.cuda.synchronize(x.device)
        return model.weight.grad

    @staticmethod
    def after(made: Any) -> Any:
        model, x = made
        for _ in range(ROUNDS):
            model(x).sum().backward()
        return model.weight.grad
