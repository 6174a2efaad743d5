"""composites: the named ops that come with the package, each defined by a graph of other ops, one file per subject.

In: tensors (operands) and attributes.  Out: one node of a library composite, or the atomic op with the same meaning.
May import: the language's core (node, atomic, composite, leaves, dims, dtypes, operands).  Never: anything that computes a value,
except in `direct`, which is float64 numpy.
Read first: arithmetic.py (operators), elementary.py (how a definition is made accurate), normalisation.py, products.py; then
trigonometry.py, special.py, activations.py, gated.py, positions.py, indexing.py, elements.py, ordering.py, rearranging.py,
batches.py, paged.py, constructors.py, einsum.py, windows.py, adaptive_pooling.py, convolution.py, upsampling.py, resizing.py,
writes.py, random.py, rounded.py, blocks.py, quantise.py; scan.py (loops), recurrent.py.
Words: definition = the graph that a composite abbreviates; direct = its float64 evaluation; LIBRARY (language/composite.py) = all
of them by name.

Importing this package fills LIBRARY. Several functions have the names of Python builtins (abs, any, pow, round, …).
"""

# ruff: noqa: F403 - each file lists its ops in __all__
from __future__ import annotations

from tensor_graphs.language.composites.activations import *
from tensor_graphs.language.composites.adaptive_pooling import *
from tensor_graphs.language.composites.arithmetic import *
from tensor_graphs.language.composites.batches import *
from tensor_graphs.language.composites.blocks import *
from tensor_graphs.language.composites.constructors import *
from tensor_graphs.language.composites.convolution import *
from tensor_graphs.language.composites.einsum import *
from tensor_graphs.language.composites.elementary import *
from tensor_graphs.language.composites.elements import *
from tensor_graphs.language.composites.gated import *
from tensor_graphs.language.composites.indexing import *
from tensor_graphs.language.composites.normalisation import *
from tensor_graphs.language.composites.ordering import *
from tensor_graphs.language.composites.paged import *
from tensor_graphs.language.composites.positions import *
from tensor_graphs.language.composites.products import *
from tensor_graphs.language.composites.quantise import *
from tensor_graphs.language.composites.random import *
from tensor_graphs.language.composites.rearranging import *
from tensor_graphs.language.composites.recurrent import *
from tensor_graphs.language.composites.resizing import *
from tensor_graphs.language.composites.rounded import *
from tensor_graphs.language.composites.scan import *
from tensor_graphs.language.composites.special import *
from tensor_graphs.language.composites.trigonometry import *
from tensor_graphs.language.composites.upsampling import *
from tensor_graphs.language.composites.windows import *
from tensor_graphs.language.composites.writes import *
