"""Recurrent layers: cells of torch's own, and whole networks by cuDNN."""

from __future__ import annotations

from typing import Final, NamedTuple

from virtual_cuda.clock.kernel_rules.products import (
    MatrixSizes,
    multiplication_kernel,
    product_kernels,
)
from virtual_cuda.clock.kernels import (
    Chip,
    Kernel,
    KernelCall,
    Kernels,
    Shape,
    kernel_rule,
)

_PERSISTENT: Final = 1 << 17  # weights that multiprocessors keep while they make all steps


@kernel_rule(
    "_thnn_fused_lstm_cell",
    "_thnn_fused_lstm_cell_backward_impl",
    "_thnn_fused_gru_cell",
    "_thnn_fused_gru_cell_backward_impl",
)
def _cell_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """The gates of one step; backward also sums for the biases.

    Raises IndexError for a call without inputs, backward.
    """
    yield Kernel("gates", call.bytes_moved)
    if call.name.endswith("impl"):
        yield Kernel("column reduction", call.input_bytes(0))


class _Layer(NamedTuple):
    """One layer of a recurrent network, forward or backward."""

    steps: int
    batch: int
    input_weight: Shape
    gates: int  # rows of the weight for the state
    hidden: int  # its columns
    dtype: str
    item_size: int
    backward: bool

    @property
    def input_sizes(self) -> MatrixSizes:
        """The sizes of the product with the inputs of all steps."""
        rows, columns = self.input_weight
        return MatrixSizes(self.steps * self.batch, rows, columns)

    @property
    def gate_bytes(self) -> int:
        """Bytes of all gates of one step."""
        return self.batch * self.gates * self.item_size


@kernel_rule("_cudnn_rnn")
def _network_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """All layers and steps of a recurrent network. Raises IndexError without inputs."""
    yield from _kernels_of_layers(call, chip, backward=False)


@kernel_rule("_cudnn_rnn_backward")
def _network_gradient_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """All layers and steps of a recurrent network, backwards. Raises IndexError without inputs."""
    yield from _kernels_of_layers(call, chip, backward=True)


def _kernels_of_layers(call: KernelCall, chip: Chip, backward: bool) -> Kernels:
    """The kernels layer by layer; a layer with few weights is one kernel that makes all steps.

    Not where sequences are packed: later steps have fewer of them. Raises IndexError for a call
    without inputs.
    """
    for layer in _layers_of(call, backward):
        if layer.gates * layer.hidden <= _PERSISTENT and not call.is_packed:
            yield from _persistent_layer(layer, chip)
        else:
            yield from _stepwise_layer(layer, chip)


def _layers_of(call: KernelCall, backward: bool) -> list[_Layer]:
    """The layers of a recurrent network, by the shapes of its weights.

    Each has a weight for its input and one for its state, one after the other. Raises IndexError
    for a call without inputs.
    """
    data = call.inputs[0]
    has_steps = len(data) == 3
    weights = [shape for shape in call.inputs[1:] if len(shape) == 2]
    input_weights = weights[::2]
    state_weights = weights[1::2]
    layers = []
    for input_weight, state_weight in zip(input_weights, state_weights, strict=False):
        gates, hidden = state_weight
        layer = _Layer(
            steps=data[0] if has_steps else 1,
            batch=data[1] if has_steps else data[0],
            input_weight=input_weight,
            gates=gates,
            hidden=hidden,
            dtype=call.dtype,
            item_size=call.item_size,
            backward=backward,
        )
        layers.append(layer)
    return layers


def _persistent_layer(layer: _Layer, chip: Chip) -> Kernels:
    """A product over all steps, and one kernel that keeps the weights and makes all steps."""
    size = layer.steps * layer.gate_bytes
    is_gru = layer.gates == 3 * layer.hidden
    if is_gru:  # adds its biases apart
        yield Kernel("pointwise", size)
    # The product with the inputs of all steps; backward also those for its two gradients.
    products = 3 if layer.backward else 1
    for _ in range(products):
        yield multiplication_kernel(layer.input_sizes, layer.dtype, chip)
    # All steps.
    seconds_a_step = 0.25e-6 + 35e-12 * layer.gates * layer.hidden
    seconds = layer.steps * seconds_a_step
    yield Kernel("persistent steps", seconds=seconds)
    if layer.backward:
        yield Kernel("gates", size)
        yield Kernel("gates", size)
        yield Kernel("reduction", size)


def _stepwise_layer(layer: _Layer, chip: Chip) -> Kernels:
    """A product over all steps; for each step a product with the state, and the gates."""
    products = 2 if layer.backward else 1
    for _ in range(products):
        yield from product_kernels(layer.input_sizes, layer.dtype, chip)
    # What each step does.
    sizes = MatrixSizes(layer.batch, layer.gates, layer.hidden)
    product = multiplication_kernel(sizes, layer.dtype, chip)
    step_product = product._replace(kind="step product")
    for _ in range(layer.steps):
        yield step_product
    for _ in range(layer.steps):
        yield Kernel("gates", 2 * layer.gate_bytes)
    # The gradient of the weight for the state, over all steps.
    if layer.backward:
        sizes = MatrixSizes(layer.gates, layer.hidden, layer.steps * layer.batch)
        yield from product_kernels(sizes, layer.dtype, chip)
