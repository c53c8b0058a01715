"""Reads how an author says that a function begins, and writes what its new files say of it."""

from __future__ import annotations

import ast
import builtins
import copy
import keyword
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from gpudojo.model.errors import BadName

LONGEST_LINE: Final = 100
LONGEST_PARAMETERS: Final = 80  # characters, so that a call fits on a line
DEFAULT_PARAMETERS: Final = "values"
# How types that torch has under a longer name may be written.
SHORT_NAMES: Final = {
    "Tensor": "torch.Tensor",
    "nn": "torch.nn",
    "Module": "torch.nn.Module",
    "Optimizer": "torch.optim.Optimizer",
    "DataLoader": "torch.utils.data.DataLoader",
}
# Types of parameters that are called so, where the author gives none.
TYPE_OF_NAME: Final = {
    "model": "torch.nn.Module",
    "loader": "torch.utils.data.DataLoader",
}
# What is passed for a parameter of a type, to begin with.
SAMPLES: Final = {
    "torch.nn.Module": "torch.nn.Linear(5, 2)",
    "torch.utils.data.DataLoader": "[(torch.rand(4, 5), torch.rand(4, 2))]",
    "torch.dtype": "torch.float32",
    "bool": "True",
    "int": "3",
    "float": "0.5",
    "str": '"text"',
}


class NeededParameter(NamedTuple):
    """A parameter that has to be passed."""

    name: str
    type: str  # "torch.Tensor"; empty where none is given
    by_name: bool

    @property
    def is_device(self) -> bool:
        """True if the device of the scenario is what to pass."""
        return self.name == "device" or self.type == "torch.device"

    @property
    def is_tensor(self) -> bool:
        """True if a tensor is to be passed, as where neither type nor name says otherwise."""
        is_open = self.type in ("", "torch.Tensor") and not self.is_device
        return is_open and not self.is_made_by_name

    @property
    def is_made_by_name(self) -> bool:
        """True if no type is given, and the name is that of a model or a loader."""
        return not self.type and self.name in TYPE_OF_NAME


@dataclass(frozen=True)
class Signature:
    """The first line of a function that students write."""

    name: str
    definition: ast.FunctionDef

    @property
    def parameter_names(self) -> list[str]:
        """The names of all parameters."""
        return [argument.arg for argument in _all_arguments(self.definition.args)]

    @property
    def needed(self) -> list[NeededParameter]:
        """The parameters that have no default, in order."""
        arguments = self.definition.args
        positional = [*arguments.posonlyargs, *arguments.args]
        count = len(positional) - len(arguments.defaults)
        found = [_parameter(argument, by_name=False) for argument in positional[:count]]
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            if default is None:
                found.append(_parameter(argument, by_name=True))
        return found

    def texts(self) -> dict[str, str]:
        """What the skeletons of an exercise say of the function, by the skeletons' words."""
        without_types = copy.deepcopy(self.definition)
        without_types.returns = None
        for argument in _all_arguments(without_types.args):
            argument.annotation = None
        return {
            "function": self.name,
            "definition": _definition_line(self.definition),
            "plain_definition": _definition_line(without_types),
            "inputs": _indent_lines(self._inputs_of_probe()),
            "scenarios": "".join(self._scenarios()),
            "demo_inputs": _indent_lines(self._inputs_of_demo()),
            "demo_call": self._demo_call(),
        }

    def _inputs_of_probe(self) -> list[str]:
        """The lines of a probe that make what is passed."""
        lines: list[str] = []
        for parameter in self.needed:
            if parameter.is_tensor:
                if not lines:
                    lines.append("generator = torch.Generator().manual_seed(call.seed)")
                value = "torch.rand(5, generator=generator).to(call.device)"
                lines.append(f"{parameter.name} = {value}")
        return lines

    def _scenarios(self) -> list[str]:
        """The scenarios of a probe: with some values, and where there are tensors, with one."""
        names = ["several"]
        if any(parameter.is_tensor for parameter in self.needed):
            names.append("one")
        lines = []
        for name in names:
            passed = ["call"]
            for parameter in self.needed:
                value = _sample(parameter, "call.device")
                if parameter.is_tensor and name == "one":
                    value = f"{parameter.name}[:1]"
                elif parameter.is_tensor:
                    value = parameter.name
                passed.append(_as_passed(parameter, value))
            text = _on_lines(f'"{name}": lambda: describe_call(', ", ".join(passed), "),", 12)
            lines.append(f"{text}\n")
        return lines

    def _inputs_of_demo(self) -> list[str]:
        """The lines of a demo that make what is passed."""
        lines = []
        for parameter in self.needed:
            if parameter.is_tensor:
                lines.append(f"{parameter.name} = torch.rand(5, device=device)")
        return lines

    def _demo_call(self) -> str:
        """The line of a demo that calls the function."""
        passed = []
        for parameter in self.needed:
            value = _sample(parameter, "device")
            if parameter.is_tensor:
                value = parameter.name
            passed.append(_as_passed(parameter, value))
        return _on_lines(f"result = {self.name}(", ", ".join(passed), ")", 8)


def split_signatures(text: str) -> tuple[str, ...]:
    """The functions in a list of them, which are separated by ";" or ",", as they are written."""
    parts = [""]
    depth = 0
    for character in text:
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        if depth == 0 and character in ";,":
            parts.append("")
        else:
            parts[-1] += character
    return tuple(part.strip() for part in parts)


def read_signature(text: str) -> Signature:
    """How a function begins: a name, or as behind `def`: "f(batch, device) -> Tensor".

    Raises BadName for what cannot stand there.
    """
    name, parenthesis, _ = text.partition("(")
    name = name.strip()
    if not parenthesis:
        text = f"{name}({DEFAULT_PARAMETERS})"
    rule = "write it as behind `def`, such as: rescale(batch, device) -> Tensor"
    if not name.isidentifier() or keyword.iskeyword(name) or "\n" in text:
        rule = "use letters, digits and single _ between them, and no keyword of Python"
        raise BadName("a function", name, rule)
    try:
        tree = ast.parse(f"def {text}: ...")
    except SyntaxError as error:
        raise BadName("a function", text, f"{error.msg}; {rule}") from None
    definition = tree.body[0]
    if len(tree.body) > 1 or not isinstance(definition, ast.FunctionDef):
        raise BadName("a function", text, rule)
    definition = _LongNames(text).visit(definition)
    assert isinstance(definition, ast.FunctionDef)
    if len(ast.unparse(definition.args)) > LONGEST_PARAMETERS:
        raise BadName("a function", text, f"its parameters have over {LONGEST_PARAMETERS} letters")
    return Signature(name, definition)


class _LongNames(ast.NodeTransformer):
    """Writes types with the names that they have where `import torch` stands above.

    Visiting raises BadName for a name that is not known there.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in SHORT_NAMES:
            return ast.parse(SHORT_NAMES[node.id], mode="eval").body
        if node.id != "torch" and not hasattr(builtins, node.id):
            rule = f"the file does not know {node.id}: write torch.…, or leave the type out"
            raise BadName("a function", self.text, rule)
        return node


def _all_arguments(arguments: ast.arguments) -> list[ast.arg]:
    """Every parameter of a definition, in order."""
    every = [*arguments.posonlyargs, *arguments.args]
    if arguments.vararg is not None:
        every.append(arguments.vararg)
    every += arguments.kwonlyargs
    if arguments.kwarg is not None:
        every.append(arguments.kwarg)
    return every


def _parameter(argument: ast.arg, by_name: bool) -> NeededParameter:
    """A parameter that has to be passed."""
    kind = ""
    if argument.annotation is not None:
        kind = ast.unparse(argument.annotation)
    return NeededParameter(argument.arg, kind, by_name)


def _sample(parameter: NeededParameter, device: str) -> str:
    """What to pass for a parameter that is no tensor; `device` is how the device is called."""
    if parameter.is_device:
        return device
    kind = parameter.type or TYPE_OF_NAME.get(parameter.name, "")
    sample = SAMPLES.get(kind, "None")
    if kind == "torch.nn.Module":
        return f"{sample}.to({device})"
    return sample


def _as_passed(parameter: NeededParameter, value: str) -> str:
    """How a call passes a value for a parameter."""
    if parameter.by_name:
        return f"{parameter.name}={value}"
    return value


def _definition_line(definition: ast.FunctionDef) -> str:
    """The text of a definition up to its colon."""
    returns = ""
    if definition.returns is not None:
        returns = f" -> {ast.unparse(definition.returns)}"
    parameters = ast.unparse(definition.args)
    return _on_lines(f"def {definition.name}(", parameters, f"){returns}:", 0)


def _on_lines(start: str, inside: str, end: str, indent: int) -> str:
    """Something with brackets around it, on one line or, where that is too long, on three."""
    margin = " " * indent
    line = f"{margin}{start}{inside}{end}"
    if len(line) <= LONGEST_LINE:
        return line
    return f"{margin}{start}\n{margin}    {inside}\n{margin}{end}"


def _indent_lines(lines: Sequence[str]) -> str:
    """Lines as those of the body of a function, with their ends."""
    return "".join(f"    {line}\n" for line in lines)
