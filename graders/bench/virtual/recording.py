"""What is written down beside operators? Forward passes, backward passes, optimizer and scaler steps."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import torch
from torch import nn

from graders.bench.ledger.rows import BACKWARD, END, FORWARD, GRAD, INFERENCE, OPTIMIZER_STEP, SCALER_CALL
from graders.bench.virtual.places import VirtualGpu
from graders.bench.virtual.sites import site


def _device_of(args: Any) -> str:
    for value in args:
        if isinstance(value, torch.Tensor):
            return str(value.device)
    return ""


class Recorder:
    """Wraps the doors through which training code walks."""

    def __init__(self, gpu: VirtualGpu) -> None:
        self.rows = gpu.ledger.rows

    def forward(self, original: Any) -> Any:
        rows = self.rows

        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            code, offset = site(2)
            mode = (GRAD if torch.is_grad_enabled() else 0) | (INFERENCE if torch.is_inference_mode_enabled() else 0)
            index = len(rows)
            rows.append((FORWARD, perf_counter(), code, offset, type(module).__name__, module.training, mode, _device_of(args)))
            try:
                return original(module, *args, **kwargs)
            finally:
                rows.append((END, perf_counter(), None, None, index))

        return call

    def backward(self, original: Any) -> Any:
        rows = self.rows

        def call(*args: Any, **kwargs: Any) -> Any:
            code, offset = site(2)
            index = len(rows)
            rows.append((BACKWARD, perf_counter(), code, offset))
            try:
                return original(*args, **kwargs)
            except RuntimeError as error:
                if "lazy" in str(error):
                    raise _reworded(error) from None
                raise
            finally:
                rows.append((END, perf_counter(), None, None, index))

        return call

    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        code, offset = site(2)
        optimizer.__dict__.setdefault("_dojo_open", []).append(len(self.rows))
        self.rows.append((OPTIMIZER_STEP, perf_counter(), code, offset, type(optimizer).__name__))

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        opened = optimizer.__dict__.get("_dojo_open")
        if opened:
            self.rows.append((END, perf_counter(), None, None, opened.pop()))

    def scaler(self, name: str, original: Any) -> Any:
        rows = self.rows

        def call(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            code, offset = site(2)
            rows.append((SCALER_CALL, perf_counter(), code, offset, name))
            return original(scaler, *args, **kwargs)

        return call

    def patches(self) -> list[tuple[Any, str, Any]]:
        scaler = torch.amp.GradScaler
        made: list[tuple[Any, str, Any]] = [
            (nn.Module, "__call__", self.forward(nn.Module.__call__)),
            (torch.autograd, "backward", self.backward(torch.autograd.backward)),
            (torch.autograd, "grad", self.backward(torch.autograd.grad)),
        ]
        for name in ("scale", "unscale_", "step", "update"):
            made.append((scaler, name, self.scaler(name, getattr(scaler, name))))
        return made

    def hooks(self) -> list[Any]:
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        return [register_optimizer_step_pre_hook(self.before_step), register_optimizer_step_post_hook(self.after_step)]


def _reworded(error: RuntimeError) -> RuntimeError:
    """C++ knows the device by its other name."""
    return type(error)(str(error).replace("lazy:", "cuda:").replace("lazy", "cuda"))
