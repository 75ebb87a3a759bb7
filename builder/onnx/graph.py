"""An ONNX graph under construction: values with arithmetic, so that formulas read as they do on paper.

Owns: names of nodes, weights and constants, and the finished model's bytes, the same for the same graph.
Does not know: Needle, files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, TensorProto, ValueInfoProto, helper

OPSET = 18
"""The first with bitwise operators, which engram hashes need."""
IR_VERSION = 8
"""The file format that came with this opset; newer ones would only shut out older runtimes."""
FLOAT, INTEGER = TensorProto.FLOAT, TensorProto.INT64
Array = npt.NDArray[np.float32] | npt.NDArray[np.int64]
Shape = Sequence[int | str]


class Value:
    """A tensor of the graph. Operators add nodes (`^` is on bits, `&` and `|` are on truth)."""

    def __init__(self, graph: Graph, name: str) -> None:
        self.graph, self.name = graph, name

    def __add__(self, other: Operand) -> Value:
        return self.graph.op("Add", self, other)

    def __sub__(self, other: Operand) -> Value:
        return self.graph.op("Sub", self, other)

    def __mul__(self, other: Operand) -> Value:
        return self.graph.op("Mul", self, other)

    def __truediv__(self, other: Operand) -> Value:
        return self.graph.op("Div", self, other)

    def __matmul__(self, other: Operand) -> Value:
        return self.graph.op("MatMul", self, other)

    def __mod__(self, other: Operand) -> Value:
        return self.graph.op("Mod", self, other)

    def __xor__(self, other: Operand) -> Value:
        return self.graph.op("BitwiseXor", self, other)

    def __and__(self, other: Operand) -> Value:
        return self.graph.op("And", self, other)

    def __or__(self, other: Operand) -> Value:
        return self.graph.op("Or", self, other)

    def __lt__(self, other: Operand) -> Value:
        return self.graph.op("Less", self, other)

    def __le__(self, other: Operand) -> Value:
        return self.graph.op("LessOrEqual", self, other)

    def __ge__(self, other: Operand) -> Value:
        return self.graph.op("GreaterOrEqual", self, other)

    def reshaped(self, *shape: int) -> Value:
        """0 keeps the axis at its place, -1 takes what is left."""
        return self.graph.op("Reshape", self, np.array(shape, np.int64))

    def transposed(self, *axes: int) -> Value:
        """The axes in a new order."""
        return self.graph.op("Transpose", self, perm=list(axes))

    def sliced(self, axis: int, start: int | Value, stop: int | None = None) -> Value:
        """From `start` up to `stop` (None: the end); both may count from the end."""
        first = start if isinstance(start, Value) else np.array([start], np.int64)
        last = np.array([np.iinfo(np.int64).max if stop is None else stop], np.int64)
        return self.graph.op("Slice", self, first, last, np.array([axis], np.int64))

    def split(self, axis: int, sizes: Sequence[int]) -> list[Value]:
        """Parts of these sizes."""
        return self.graph.ops("Split", len(sizes), self, np.array(sizes, np.int64), axis=axis)

    def mean(self, axis: int, *, keep: bool = False) -> Value:
        """The mean over one axis."""
        return self.graph.op("ReduceMean", self, np.array([axis], np.int64), keepdims=int(keep))

    def size(self, axis: int) -> Value:
        """The length of an axis, (1,) i64."""
        return self.graph.op("Shape", self, start=axis, end=axis + 1)


Operand = Value | Array | float


class Graph:
    """Inputs, nodes, weights and outputs in the order in which they were added."""

    def __init__(self) -> None:
        self.place = ""
        """Put before the names of new nodes: the part of the model that they belong to."""
        self._nodes: list[NodeProto] = []
        self._inputs: list[ValueInfoProto] = []
        self._outputs: list[ValueInfoProto] = []
        self._initializers: list[TensorProto] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], Value] = {}
        self._output_names: dict[str, str] = {}

    @contextmanager
    def within(self, place: str) -> Iterator[None]:
        """Name what is added meanwhile after a part of the model."""
        before, self.place = self.place, f"{self.place}{place}/"
        yield
        self.place = before

    def input(self, name: str, kind: int, shape: Shape) -> Value:
        """A tensor that the caller gives; axes that vary have a name."""
        self._inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return Value(self, name)

    def output(self, name: str, value: Value, kind: int, shape: Shape) -> None:
        """A tensor that the caller gets: what a node made, under another name."""
        self._output_names[value.name] = name
        self._outputs.append(helper.make_tensor_value_info(name, kind, shape))

    def weight(self, name: str, values: Array) -> Value:
        """A tensor that the file holds under this name."""
        kind = FLOAT if values.dtype == np.float32 else INTEGER
        little = values.astype(values.dtype.newbyteorder("<"))
        self._initializers.append(helper.make_tensor(name, kind, values.shape, little.tobytes(), raw=True))
        return Value(self, name)

    def op(self, kind: str, *operands: Operand, **attributes: Any) -> Value:
        """The only output of a new node."""
        return self.ops(kind, 1, *operands, **attributes)[0]

    def ops(self, kind: str, count: int, *operands: Operand, **attributes: Any) -> list[Value]:
        """The outputs of a new node."""
        inputs = [self._value(operand).name for operand in operands]
        name = f"{self.place}{kind}.{len(self._nodes)}"
        outputs = [name] if count == 1 else [f"{name}.{i}" for i in range(count)]
        self._nodes.append(helper.make_node(kind, inputs, outputs, name=name, **attributes))
        return [Value(self, output) for output in outputs]

    def serialised(self, description: str, facts: dict[str, str]) -> bytes:
        """The finished model as a file's bytes."""
        for node in self._nodes:
            for names in (node.input, node.output):
                names[:] = [self._output_names.get(name, name) for name in names]
        graph = helper.make_graph(
            self._nodes, "model", self._inputs, self._outputs, self._initializers, doc_string=description
        )
        model = helper.make_model(
            graph,
            producer_name="saguaro",
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
        )
        helper.set_model_props(model, facts)
        data: bytes = model.SerializeToString(deterministic=True)
        return data

    def constant(self, values: Array) -> Value:
        """A small tensor without a name of its own; equal ones are kept once."""
        key = (values.dtype.str, values.shape, values.tobytes())
        if key not in self._constants:
            self._constants[key] = self.weight(f"constant.{len(self._constants)}", values)
        return self._constants[key]

    def _value(self, operand: Operand) -> Value:
        if isinstance(operand, Value):
            return operand
        return self.constant(np.asarray(operand, np.float32) if isinstance(operand, float) else operand)
