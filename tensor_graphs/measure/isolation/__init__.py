"""isolation: runs a candidate kernel where it can do no harm, and checks its reports rather than trust them.

In: a job for a kernel.  Out: typed replies, or how its process ended.
Read first: worker_process.py (the judge's side), supervisor.py (the worker's parent), worker.py (runs candidates), fork_server.py
and fork_server_process.py (supervisors are forked from it), signed_frames.py and replies.py (messages), memory_guards.py,
process_state.py and tampering.py (detect changes by a candidate to anything but its outputs)."""
