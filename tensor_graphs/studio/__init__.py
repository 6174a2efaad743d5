"""studio: one page on a graph and its plan: boxes that open, steps with the reasons for them, paths side by side, memory, a run.

In: a plan, listed paths, a front, a timeline.  Out: an HTML document that needs no network.
May import: every room above (language … training).  Never: cli.
Read first: data.py (what the page shows, as JSON), then page.html and studio.js (how it is shown).
Words: block = boxes of a picture in layers, which may hold other blocks (views/layout.py).
"""
