"""learned: a cost model fitted to the measurements of this machine.

Read first: cost_model.py (how an estimate is made), fit.py (how a model is trained, checked and stored), features.py.
"""
