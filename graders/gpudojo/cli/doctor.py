"""`dojo doctor`."""

from __future__ import annotations

import importlib.metadata
import platform
import sys

import click

from gpudojo import __version__
from gpudojo.cli.options import processors
from gpudojo.model.errors import DojoError
from gpudojo.sandbox.layers import ADVICE, PURPOSE, examine


@click.command()
def doctor() -> None:
    """Show what this machine has, torch, device and isolation, and what to do about what is missing."""
    system = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    click.echo(f"gpudojo {__version__}, {system}, {processors()} processors")
    problems = _torch()
    click.echo("isolation:")
    layers = examine()
    for name, why in layers.items():
        mark = click.style("ok", fg="green") if not why else click.style("--", fg="yellow")
        click.echo(f"  {mark}  {name}: {PURPOSE.get(name, '')}")
        if why:
            click.echo(f"      missing: {why}")
            if name in ADVICE:
                click.echo(f"      {ADVICE[name]}")
    lacking = ", ".join(name for name, why in layers.items() if why)
    click.echo(f"  --require-isolation would refuse to grade here: {lacking}" if lacking else "  every layer holds")
    if problems:
        sys.exit(1)


def _torch() -> bool:
    """Prints two lines about torch and the device; True if exercises cannot run at all."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        click.echo("torch: not installed\n  pip install torch")
        return True
    from virtual_cuda import choose_device

    try:
        import torch

        kind, why = choose_device("auto")
        built = "with CUDA" if torch.version.cuda else "without CUDA"
        click.echo(f"torch: {version}, built {built}")
        click.echo(f"device: {kind} ({why})")
        from virtual_cuda import virtual_cuda

        if kind == "virtual":
            with virtual_cuda():
                torch.ones(2, device="cuda").sum().item()
            click.echo("  the virtual CUDA device opens, computes and closes")
    except (DojoError, ImportError, OSError) as error:
        click.echo(f"torch: {version}, which does not work here: {error}")
        return True
    return False
