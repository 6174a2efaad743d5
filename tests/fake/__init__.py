"""fake: a second device for tests, in host memory but an address space of its own, and a backend that computes on it.

The fixture `fake` (tests/conftest.py) makes it known; device.py says why a wrong use of its memory cannot go unseen.
"""
