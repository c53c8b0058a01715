"""What became of a batch that was to be moved? Pairs, nested ones, named tuples, and things that are no tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graders.day8.moving_batches.functions import move
from graders.day8.moving_batches.probes_batches import Alone, Author, Masked, Sprite, images, labels, pair
from graders.probes.calling import Call
from graders.probes.late import torch
from graders.probes.scenarios import tried
from graders.probes.settings import settled
from graders.probes.structures import Kept, places


def _moved(call: Call, batch: Any, device: Any, **options: Any) -> dict[str, Any]:
    kept = Kept(batch)
    value, settings = settled(call, batch, device, **options)
    copies = call.ledger.transfers()
    return {
        "places": places(batch, value),
        "changed": kept.changed(),
        "copies": len(copies),
        # Not what was only looked at on the way: `asyncio.run` shows the result of a task when it puts Ctrl-C back.
        "waits": [not copy.non_blocking for copy in call.ledger.transfers_to_device()],
        "line": next((call.line_of(copy) for copy in copies), None),
        "settings": settings,
    }


def _group(name: str, call: Call, device: Any, batches: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    """Each batch of a group; which group an error is in decides which check it belongs to."""
    about = {"group": name, "device": str(torch.empty(0, device=device).device)}
    return {title: about | tried(_moved, call, batch, device, **options) for title, batch in batches.items()}


def _nested(seed: int) -> Any:
    sprites, classes = pair(seed)
    return {
        "images": [sprites, (sprites > 0.5, classes.to(torch.uint8))],
        "deeper": {"labels": classes, 7: {"one": (classes.sum(),)}},
        ("a", 1): (sprites.half(), [torch.zeros(0, 3), [classes + 1]]),
    }


@move.probe
def moved(call: Call) -> dict[str, Any]:
    """From the CPU to the device: the device as an object, but once as a string."""
    seed, device = call.seed, call.device
    sprites, classes = pair(seed)
    empty: dict[str, Any] = {"list": [], "tuple": (), "dict": {}, "in": [[], ({},)]}
    inside = [Masked({"a": Alone(sprites)}, (classes,)), {"s": Masked(classes, [])}]
    named = {"images": sprites, "title": "mushroom", "count": 2, "score": 0.5, "mask": None, "new": True}
    listed = [classes, "mushroom", 7, None, b"png", Author(), ("", "m", -1.5, 1j)]
    return (
        _group("a_pair", call, device, {"a list": list(pair(seed)), "a tensor": labels(seed)})
        | _group("a_pair", call, str(device), {"a tuple": pair(seed)})
        | _group("nested", call, device, {"a nested batch": _nested(seed), "empty containers": empty})
        | _group("nested", call, device, {"an empty list": [], "an empty tuple": (), "an empty dict": {}})
        | _group("named_tuples", call, device, {"a named tuple": Masked(sprites, sprites > 0.5)})
        | _group("named_tuples", call, device, {"a named tuple of one field": Alone(images(seed))})
        | _group("named_tuples", call, device, {"named tuples inside": inside})
        | _group("other_things", call, device, {"a dict with other things": named, "a list with other things": listed})
        | _group("other_things", call, device, {"a string": "mushroom", "a number": 3, "None": None})
        | _group("a_sprite_with_title", call, device, {"a named tuple with a string": Sprite(*pair(seed), "mushroom")})
        | _elsewhere(call)
        | _without_waiting(call)
    )


def _elsewhere(call: Call) -> dict[str, Any]:
    """Where the tensors are already, by either name of the device (`cuda` and `cuda:0`), and back to the CPU."""
    seed, device = call.seed, call.device
    there, classes = images(seed).to(device), labels(seed).to(device)
    return (
        _group("already_there", call, device, {"a tensor that is there": there})
        | _group("already_there", call, device.type, {"by its type": [there, there[:1], there.mT]})
        | _group("already_there", call, str(device), {"half of the pair": [there, labels(seed)]})
        | _group("already_there", call, "cpu", {"on the CPU": list(pair(seed))})
        | _group("back_to_the_cpu", call, torch.device("cpu"), {"from the device": [there, classes]})
    )


def _without_waiting(call: Call) -> dict[str, Any]:
    """Pinned where that exists, since only then a copy can do without waiting."""
    sprites, classes = pair(call.seed)
    if call.device.type == "cuda":
        sprites, classes = sprites.pin_memory(), classes.pin_memory()
    nested = {"images": [sprites], "labels": (classes, Alone(sprites))}
    both = [sprites, classes]
    group = "without_waiting"
    return (
        _group(
            group, call, call.device, {"a pair, not waiting": both, "nested, not waiting": nested}, non_blocking=True
        )
        | _group(group, call, call.device, {"a pair, waiting": both})
        | _group(group, call, call.device, {"nested, waiting": nested}, non_blocking=False)
    )


def moved_to_the_second_gpu(call: Call) -> dict[str, Any]:
    first = [tensor.to("cuda:0") for tensor in pair(call.seed)]
    group = "to_the_second_gpu"
    return _group(group, call, "cuda:1", {"from the CPU": list(pair(call.seed))}) | _group(
        group, call, torch.device("cuda", 1), {"from the first": first}
    )


move.probe(moved_to_the_second_gpu, machine="two gpus")
