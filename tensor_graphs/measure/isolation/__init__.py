"""isolation: a candidate runs where it can do no harm, and what it says is not believed.

In: a job for a kernel.  Out: typed replies, or how its process ended.
Read first: worker_process.py (the judge's side: starts, waits, and kills what takes too long), supervisor.py (the worker's parent),
worker.py (the process that runs candidates), template.py and template_process.py (what supervisors are forked from), frames.py
and replies.py (what they say to each other), memory_guards.py, process_state.py and tampering.py (what shows that a candidate
touched what is not its own).
"""
