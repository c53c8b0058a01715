"""Which functions does exercise 11 ask for, and what may be said to help?"""

from __future__ import annotations

from graders.curriculum import Exercise

exercise = Exercise(
    "11_multiple_gpus",
    "One model on several GPUs",
    points=3,
    reading=("generated/torch.nn.DataParallel.html", "distributed.html", "notes/ddp.html"),
)
parallel = exercise.function(
    "parallelize",
    "`model.to(device)` first; then `nn.DataParallel(model)` if there is something to share.",
    '`torch.device(device).type == "cuda"` holds for "cuda" and "cuda:0"; `torch.cuda.device_count()` counts the GPUs.',
)
inside = exercise.function(
    "unwrap",
    "Both wrappers keep the model as `.module`.",
    "`isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel))` asks for the wrapper itself.",
)
average = exercise.function(
    "average_gradients",
    "`dist.all_reduce(tensor)` replaces the tensor in every process by the sum over all of them.",
    "A mean is a sum divided by `dist.get_world_size()`.",
    "Skip parameters whose `.grad` is None, the same ones in every process.",
)
