"""Oracle: ONNX Runtime on an exported file, driven as docs/onnx.md says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnxruntime

NUMPY_TYPES = {"tensor(int64)": np.int64, "tensor(float)": np.float32}


class OnnxSession:
    """One text; what the graph remembers goes from each call's outputs to the next one's inputs."""

    def __init__(self, model: bytes, pinned: int = 0) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        inputs = {i.name: i for i in self._session.get_inputs()}
        self._outputs = [output.name for output in self._session.get_outputs()]
        self._fixed = {"pinned": np.array([pinned])} if "pinned" in inputs else {}
        self._empty = {
            name: np.zeros([size if isinstance(size, int) else 0 for size in i.shape], NUMPY_TYPES[i.type])
            for name, i in inputs.items()
            if name.startswith("past.")
        }
        self.reset()

    def reset(self) -> None:
        """Nothing remembered."""
        self._past = self._empty

    def append(self, ids: Sequence[int], logit_rows: int = 1) -> np.ndarray:
        """Logits (logit_rows, logit_count) of the last new ids."""
        new = {"ids": np.array(ids, np.int64), "logit_rows": np.array([logit_rows])}
        outputs = dict(
            zip(self._outputs, self._session.run(None, new | self._fixed | self._past), strict=True)
        )
        self._past = {
            name.replace("present.", "past."): outputs[name] for name in outputs if name != "logits"
        }
        return outputs["logits"]
