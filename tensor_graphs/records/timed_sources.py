"""timed_sources: sources of kernels that were timed in an environment, from which a backend can build them again."""

from __future__ import annotations

import sqlalchemy as sa

from tensor_graphs.devices.environment import Environment
from tensor_graphs.records.database import Database
from tensor_graphs.records.measurements import measured_in
from tensor_graphs.records.schema import BenchmarkTrace, Implementation, ImplementationSource


def sources_timed(database: Database, environment: Environment | str, prefix: str) -> tuple[tuple[str, str], ...]:
    """Return (source hash, source) of the trusted kernels whose names begin with a prefix, and of which a cold time is stored for
    this environment."""
    source, trace = ImplementationSource, BenchmarkTrace
    timed = sa.exists().where(trace.implementation_id == Implementation.id, measured_in(environment), trace.kind == "cold",
                              trace.status == "PASSED")
    select = (sa.select(Implementation.source_hash, source.content).join(source, source.implementation_id == Implementation.id)
              .where(Implementation.name >= prefix, Implementation.name < prefix[:-1] + chr(ord(prefix[-1]) + 1),
                     source.path == Implementation.name + ".txt", source.trusted, timed).order_by(Implementation.id))
    with database.reading() as connection:
        return tuple((row[0], row[1]) for row in connection.execute(select))
