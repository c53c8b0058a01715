"""`torch.backends.cuda.preferred_linalg_library` and `preferred_blas_library`.

A build without CUDA refuses to prefer a library of CUDA. Here none of them runs, so that the choice
is kept and told, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import torch

from virtual_cuda.patching import Opening, Patch, around, torch_patches

# By the subject in the names of the functions in C++: the libraries that a build with CUDA has.
_LIBRARIES: Final = {"linalg": ("Cusolver", "Magma"), "blas": ("Cublas", "Cublaslt")}


def _prefer(chosen: dict[str, Any], subject: str, set_in_torch: Any, library: Any) -> None:
    """Prefer a library: the choice is put into `chosen`, by subject, if it is one of CUDA's.

    `subject` is "linalg" or "blas". `set_in_torch` gets any other library, such as "default".
    Raises what `set_in_torch` raises.
    """
    if getattr(library, "name", None) in _LIBRARIES[subject]:
        chosen[subject] = library
        return
    set_in_torch(library)
    chosen.pop(subject, None)


def _find_preferred(chosen: dict[str, Any], subject: str, get_from_torch: Any) -> Any:
    """The library that is preferred: that in `chosen`, else what torch says."""
    if subject in chosen:
        return chosen[subject]
    return get_from_torch()


@torch_patches()
def _library_patches(opening: Opening) -> Iterator[Patch]:
    """The patches of the functions in C++ that keep the choices.

    `opening` is told to forget them for each later device.
    """
    chosen: dict[str, Any] = {}
    opening.on_next_device.append(lambda gpu: chosen.clear())
    for subject in _LIBRARIES:
        name = f"{subject}_preferred_backend"
        yield around(torch._C, f"_set_{name}", partial(_prefer, chosen, subject))
        yield around(torch._C, f"_get_{name}", partial(_find_preferred, chosen, subject))
