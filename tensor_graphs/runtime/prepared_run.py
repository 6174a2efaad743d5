"""prepared_run: the class Prepared, a repeatable run on fixed arrays."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tensor_graphs.language.call_errors import CallError
from tensor_graphs.runtime.device_array import overlap
from tensor_graphs.runtime.errors import RunError
from tensor_graphs.runtime.run_frame import Frame
from tensor_graphs.runtime.segments.native import check
from tensor_graphs.runtime.session import Session
from tensor_graphs.runtime.write_row_checks import check_rows

if TYPE_CHECKING:
    from tensor_graphs.runtime.compiled_graph import CompiledGraph


class Prepared:
    """A repeatable run on fixed arrays, created by `CompiledGraph.prepared`, which fills all tables once. outputs: name -> array
    that each run writes. Runs of one Prepared are serialised."""

    def __init__(self, compiled: CompiledGraph, inputs: Mapping[str, Any], dims: Mapping[str, int], session: Session | None,
                 out: Mapping[str, Any] | None) -> None:
        call = compiled.placed(inputs, dims, session, out)
        compiled.refuse_shared({name: call.results[name] for name in out or ()}, session)
        for name, array in call.arrays.items():
            if isinstance(array, np.ndarray) and array is not inputs[name] and array.flags.owndata:     # of a list, a view
                is_list = isinstance(inputs[name], (list, tuple, int, float))
                raise RunError(f"input {name!r} would have to be copied at every run: it is "
                               f"{f'a {type(inputs[name]).__name__}' if is_list else 'not contiguous'}\n"
                               f"  fix: np.ascontiguousarray(…, {array.dtype.name!r}), kept to write the next values into")
            if any(overlap(array, r) for r in call.results.values()) or (
                    session is not None and isinstance(array, np.ndarray) and session.holds(array)):
                raise RunError(f"input {name!r} shares memory with an output or a state, and a prepared run copies nothing\n"
                               "  fix: run(…), or an array of its own")
        self._lock = threading.Lock() if session is None else session.lock
        self._frame = Frame(call.executor)
        self._call, self._session, self._bases = call, session, call.bases(self._frame)
        self._written, self._binding = compiled.written_rows, dict(zip(compiled.dims, call.sizes, strict=True))
        self.outputs: dict[str, Any] = call.results

    def __repr__(self) -> str:
        read, written = (", ".join(f"{n} {a.dtype.name}{list(a.shape)}" for n, a in arrays.items())
                         for arrays in (self._call.arrays, self.outputs))
        return f"<prepared run: {read or 'no inputs'} -> {written or 'no outputs'}>"

    def __reduce__(self) -> NoReturn:
        raise RunError("a prepared run is addresses of arrays in this process: it is neither pickled nor copied\n"
                       "  fix: pickle the bound model, and call prepared(…) where it is read")

    def run(self, *arguments: object) -> dict[str, Any]:
        """Compute the outputs from the current contents of the inputs, update the session's states, and return `outputs` (the same
        arrays each time). Raises CallError for any argument."""
        if arguments:
            raise CallError("a prepared run takes no arguments: it reads the arrays that it was prepared with",
                            fix="write into those, x[...] = values, then run(); or run(inputs) of the bound model")
        frame, executor, session = self._frame, self._call.executor, self._session
        if self._written:
            check_rows(self._written, self._call.arrays, self._binding)
        with self._lock:
            if frame.bound != executor.bound or session is not None:
                states = {} if session is None else self._call.state_bases(session)
                executor.ready(frame, self._call.sizes, self._bases | states)
            if frame.call is None:
                self._call.send(self._bases)
                executor.run(frame, self._call.sizes, {})
                self._call.fetch(self._bases)
            else:
                check(frame.call())
        return self.outputs
