"""Stands for a private name of torch that this release does not have."""

from __future__ import annotations

from typing import Any, NoReturn

from virtual_cuda.errors import TorchLacks


class Lacking:
    """Stands for something that this torch does not have. Any use of it raises TorchLacks."""

    def __init__(self, path: str, feature: str) -> None:
        self.__dict__.update(_path=path, _feature=feature)

    def _refuse(self) -> NoReturn:
        """Raise TorchLacks with what is missing, and what needs it."""
        # Not imported before: `patching` is part of processes that never run code on a device.
        import torch

        raise TorchLacks(self._path, self._feature, torch.__version__)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._refuse()

    def __getattr__(self, name: str) -> NoReturn:
        self._refuse()

    def __setattr__(self, name: str, value: object) -> NoReturn:
        self._refuse()
