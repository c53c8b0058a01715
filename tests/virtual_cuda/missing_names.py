"""Hides private names of torch one at a time, and tries whether the virtual device still works.

`python -m tests.virtual_cuda.missing_names [NAME …]` prints how each name that stops the device
does so, and exits with their number; the environment's SAMPLE=10 tries every tenth name. Each name
is tried in a process of its own, forked from one that has torch loaded and nothing of this project.
There the code of virtual_cuda is loaded with the name respelled, so that it leads nowhere: torch
itself still has it.
"""

from __future__ import annotations

import ast
import importlib.abc
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

PACKAGE = Path(__file__).parents[2] / "graders" / "virtual_cuda"
ABSENT = "_that_is_absent"
DOTTED_NAME = re.compile(r"torch(\.\w+)+")


# ---- which names ---------------------------------------------------------------------------------


def is_private(path: str) -> bool:
    """True for a dotted name with a part that begins with one underscore."""
    return any(part.startswith("_") and not part.startswith("__") for part in path.split("."))


class NameCollector(ast.NodeVisitor):
    """Collects the dotted names of torch that a module uses: attributes, imports and texts."""

    def __init__(self) -> None:
        self.paths: set[str] = set()
        self.aliases: dict[str, str] = {}  # names in the module, and what of torch they stand for

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name.split(".")[0] == "torch":
                self.aliases[alias.asname or "torch"] = alias.name if alias.asname else "torch"
                self.paths.add(alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.module is not None and node.module.split(".")[0] == "torch":
            for alias in node.names:
                path = f"{node.module}.{alias.name}"
                self.aliases[alias.asname or alias.name] = path
                self.paths.add(path)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._note_alias(node.target, node.value)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        self._note_alias(node.targets[0], node.value)
        self.generic_visit(node)

    def _note_alias(self, target: ast.expr, value: ast.expr | None) -> None:
        path = self.path_of(value)
        if path is not None and isinstance(target, ast.Name):
            self.aliases[target.id] = path

    def visit_Attribute(self, node: ast.Attribute) -> None:
        path = self.path_of(node)
        if path is None:
            self.generic_visit(node)
        else:
            self.paths.add(path)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and DOTTED_NAME.fullmatch(node.value):
            self.paths.add(node.value)

    def path_of(self, node: ast.expr | None) -> str | None:
        """The dotted name of torch that an expression spells, or None."""
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self.path_of(node.value)
            return None if owner is None else f"{owner}.{node.attr}"
        return None


def names_in_code() -> set[str]:
    """Every private name of torch that stands in the code of virtual_cuda."""
    paths: set[str] = set()
    for file in PACKAGE.rglob("*.py"):
        collector = NameCollector()
        collector.visit(ast.parse(file.read_text(encoding="utf-8")))
        paths |= collector.paths
    return {path for path in paths if is_private(path)}


def names_patched() -> set[str]:
    """Every private name of torch that an open device has replaced. Opens a device."""
    from virtual_cuda import virtual_cuda
    from virtual_cuda.patching import patches_in_force

    with virtual_cuda():
        targets = [(done.owner, done.name) for done in patches_in_force() if done.existed]
    paths = set()
    for owner, name in targets:
        owner_path = owner.__name__
        if isinstance(owner, type):
            owner_path = f"{owner.__module__}.{owner.__qualname__}"
        paths.add(f"{owner_path}.{name}")
    return {path for path in paths if is_private(path) and path.startswith("torch.")}


# ---- hiding one ----------------------------------------------------------------------------------


class NameHider(ast.NodeTransformer):
    """Respells one dotted name in a module's code, so that it leads nowhere."""

    def __init__(self, path: str, collector: NameCollector) -> None:
        self.path = path
        self.last = path.rpartition(".")[2]
        self.collector = collector

    def visit_Import(self, node: ast.Import) -> ast.Import:
        for alias in node.names:
            alias.name = self._respell(alias.name)
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        if node.module is not None:
            for alias in node.names:
                spelled = self._respell(f"{node.module}.{alias.name}")
                alias.asname = alias.asname or alias.name
                alias.name = spelled.rpartition(".")[2]
            node.module = self._respell(node.module)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.Attribute:
        if self.collector.path_of(node) == self.path:
            node.attr += ABSENT
        self.generic_visit(node)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if isinstance(node.value, str):
            if node.value == self.last and is_private(self.last):
                node.value += ABSENT
            elif DOTTED_NAME.fullmatch(node.value):
                node.value = self._respell(node.value)
        return node

    def _respell(self, path: str) -> str:
        if f"{path}.".startswith(f"{self.path}."):
            return self.path + ABSENT + path[len(self.path) :]
        return path


class HidingLoader(SourceFileLoader):
    """Loads modules of virtual_cuda in which a dotted name is respelled."""

    hidden_path = ""

    def get_code(self, fullname: str) -> CodeType | None:
        file = Path(self.get_filename(fullname))
        source = file.read_text(encoding="utf-8")
        if self.hidden_path.rpartition(".")[2] not in source:
            return super().get_code(fullname)
        tree = ast.parse(source)
        collector = NameCollector()
        collector.visit(tree)
        NameHider(self.hidden_path, collector).visit(tree)
        return compile(ast.fix_missing_locations(tree), file, "exec")


class HidingFinder(importlib.abc.MetaPathFinder):
    """Finds the modules of virtual_cuda, and nothing else."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname.partition(".")[0] != "virtual_cuda":
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = HidingLoader(fullname, spec.loader.path)
        return spec


def hide(path: str) -> None:
    """Let modules of virtual_cuda that are imported from now on find nothing under this name of
    torch's.
    """
    HidingLoader.hidden_path = path
    sys.meta_path.insert(0, HidingFinder())


# ---- what is tried -------------------------------------------------------------------------------


def train(device: str) -> float:
    """Train a small model for two steps, and return its last loss."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(72, 3)
    )
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    images = torch.randn(4, 1, 8, 8)
    labels = torch.tensor([0, 1, 2, 0])
    dataset = torch.utils.data.TensorDataset(images, labels)
    for batch, wanted in torch.utils.data.DataLoader(dataset, batch_size=2):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch.to(device)), wanted.to(device))
        loss.backward()
        optimizer.step()
    return loss.item()


def train_on_device() -> str:
    """Open the virtual device, train there, close it. Returns what happened, "" if it went well."""
    import torch
    from virtual_cuda.errors import TorchUnsupported

    opened = closed = False
    try:
        from virtual_cuda import virtual_cuda

        with virtual_cuda():
            opened = True
            try:
                train("cuda")
            finally:
                closed = True
        closed = not torch.cuda.is_available()
    except TorchUnsupported as error:
        return f"refused: {error}"
    except Exception:
        state = "open" if not opened else "train"
        return f"{state}: {traceback.format_exc()}"
    return "" if closed else "close: torch.cuda is still available"


def in_a_fork(function: Callable[[], Any]) -> Any:
    """What a function returns in a forked process; a text where that process ends otherwise."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        try:
            answer = json.dumps(function())
        except BaseException:
            answer = json.dumps(f"failed: {traceback.format_exc()}")
        with os.fdopen(writer, "w") as pipe:
            pipe.write(answer)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    return json.loads(answer) if answer else f"ended with status {status}"


def problem_without(path: str) -> str:
    """How the device fails where torch lacks this name.

    "" if it opens, trains and closes all the same.
    """

    def hide_and_train() -> str:
        hide(path)
        return train_on_device()

    problem: str = in_a_fork(hide_and_train)
    return problem


def indispensable_names() -> list[str]:
    """The names without which the device refuses to open."""

    def read_them() -> list[str]:
        from virtual_cuda.internals import INDISPENSABLE

        return list(INDISPENSABLE)

    names: list[str] = in_a_fork(read_them)  # so that this process stays without virtual_cuda
    return names


def all_names() -> list[str]:
    """Every private name of torch that virtual_cuda uses or replaces, sorted."""
    patched = in_a_fork(lambda: sorted(names_patched()))
    assert isinstance(patched, list), patched
    return sorted(names_in_code().union(patched))


def failures(paths: list[str]) -> Iterator[tuple[str, str]]:
    """Each name without which the device fails, and how.

    Refusing to open for an indispensable one is no failure.
    """
    import torch.utils.data  # noqa: F401

    indispensable = indispensable_names()
    for path in paths:
        problem = problem_without(path)
        belongs = any(f"{path}.".startswith(f"{name}.") for name in indispensable)
        if problem and not (belongs and problem.startswith("refused")):
            yield path, problem


def main() -> None:
    import torch.utils.data  # noqa: F401

    paths = sys.argv[1:] or all_names()
    every_other = int(os.environ.get("SAMPLE", "1"))
    paths = paths[::every_other]
    count = 0
    for path, problem in failures(paths):
        count += 1
        print(f"{path}: {problem}", flush=True)
    print(f"{count} of {len(paths)} names stop the device")
    sys.exit(min(count, 100))


if __name__ == "__main__":
    main()
