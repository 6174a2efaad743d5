"""tuned_kernels: register again kernels of single signatures that a schedule search produced and that were timed here."""

from __future__ import annotations

import importlib
import logging

from tensor_graphs.devices.environment import Environment
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.kernels.registry import backend_module, know
from tensor_graphs.records.database import Database
from tensor_graphs.records.timed_sources import sources_timed

log = logging.getLogger(__name__)


def know_tuned(database: Database, backend: str, environment: Environment) -> None:
    """Register the tuned kernels of a backend (`TUNED`: the module that builds them) for which the database has times on this
    machine. Kernels of another version of the generator differ and have no rows: they are left out."""
    for identity, source in sources_timed(database, environment, f"{backend}.tuned_"):
        try:                                                        # a door: a machine that tunes nothing needs no actions
            kernel = importlib.import_module(backend_module(backend).TUNED).kernel_from(source)
        except TensorGraphsError as e:
            log.debug("a tuned kernel of %s is left out: %s", backend, e)
            continue
        if kernel.identity == identity:
            know(kernel)
