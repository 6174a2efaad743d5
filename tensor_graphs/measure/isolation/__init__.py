"""isolation: a candidate runs where it can do no harm, and its reports are not believed.

In: a job for a kernel.  Out: typed replies, or how its process ended.
Read first: worker_process.py (the judge's side), supervisor.py (the worker's parent), worker.py (runs candidates), template.py and
template_process.py (supervisors are forked from it), frames.py and replies.py (messages), memory_guards.py, process_state.py and
tampering.py (detect what a candidate touched that is not its own)."""
