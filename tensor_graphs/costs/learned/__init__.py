"""learned: a cost model fitted to the measurements of this machine.

Read first: cost_model.py (how an estimate is computed), fit.py (how a model is trained, tested and stored), features.py.
"""
