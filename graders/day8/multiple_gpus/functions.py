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
    "Only `.grad` changes. Skip parameters where it is None, the same ones in every process.",
)
parallel.when("moves_the_model", "keeps_the_model_itself", hint=1, at=("return", "last return"))
parallel.when("wraps_for_several_gpus", hint=2, at=("DataParallel(", "return", "last return"))
inside.when("runs", "finds_the_model_inside", hint=2, at=("eval(", "deepcopy(", "isinstance(", "return"))
inside.when("leaves_other_models_whole", hint=2, at=("eval(", "deepcopy(", "last return"))
average.when("makes_them_the_mean", hint=1, at=("all_reduce(", "reduce(", "for"))
average.when("gradients-summed-not-averaged", "asks_how_many_there_are", hint=2, at=("all_reduce(", "for"))
average.when("runs", "leaves_the_rest_alone", hint=3, at=("all_reduce(", "for"))
