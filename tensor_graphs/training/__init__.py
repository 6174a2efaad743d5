"""training: changes the parameters of a graph until its loss is small.

In: a graph with a loss, arrays for its parameters, an optimiser.  Out: a Trainer, whose step is one plan, and checkpoints.
May import: every room above (language … serving).  Never: cli.
Read first: optim.py (an optimiser is a graph from a gradient to a new value), then step.py (loss, gradients and updates in one
graph) and trainer.py (its plan, its states, its checkpoints).
Words: slope = the gradient of the loss with respect to one parameter; moment = a state that an optimiser keeps for one parameter.
"""
