"""composites: the named ops that come with the package, each defined by a graph of other ops, one file per subject.

In: tensors (operands) and attributes.  Out: one node of a library composite, or the atomic op that says the same.
May import: the language's core (node, atomic, composite, leaves, dims, dtypes, operands).  Never: anything that computes
a value, except in `direct`, which is float64 numpy.
Read first: arithmetic.py (operators), elementary.py (how a definition is made accurate), normalisation.py, products.py;
then gated.py, positions.py, indexing.py, batches.py, constructors.py, einsum.py, windows.py, convolution.py, upsampling.py,
writes.py, random.py; scan.py (loops).
Words: definition = the graph a composite stands for; direct = its float64 evaluation; LIBRARY (composite.py) = all of
them by name.

Importing this package fills LIBRARY. Several functions have the names of Python builtins (abs, any, pow, round, …).
"""

from __future__ import annotations

from tensor_graphs.language.composites.arithmetic import abs as abs
from tensor_graphs.language.composites.arithmetic import add as add
from tensor_graphs.language.composites.arithmetic import all as all
from tensor_graphs.language.composites.arithmetic import any as any
from tensor_graphs.language.composites.arithmetic import bit_and as bit_and
from tensor_graphs.language.composites.arithmetic import bit_or as bit_or
from tensor_graphs.language.composites.arithmetic import bit_xor as bit_xor
from tensor_graphs.language.composites.arithmetic import ceil as ceil
from tensor_graphs.language.composites.arithmetic import clip as clip
from tensor_graphs.language.composites.arithmetic import div as div
from tensor_graphs.language.composites.arithmetic import equals as equals
from tensor_graphs.language.composites.arithmetic import floor_div as floor_div
from tensor_graphs.language.composites.arithmetic import greater as greater
from tensor_graphs.language.composites.arithmetic import greater_equal as greater_equal
from tensor_graphs.language.composites.arithmetic import integer_power as integer_power
from tensor_graphs.language.composites.arithmetic import is_finite as is_finite
from tensor_graphs.language.composites.arithmetic import is_nan as is_nan
from tensor_graphs.language.composites.arithmetic import left_shift as left_shift
from tensor_graphs.language.composites.arithmetic import less as less
from tensor_graphs.language.composites.arithmetic import less_equal as less_equal
from tensor_graphs.language.composites.arithmetic import maximum as maximum
from tensor_graphs.language.composites.arithmetic import minimum as minimum
from tensor_graphs.language.composites.arithmetic import mod as mod
from tensor_graphs.language.composites.arithmetic import mul as mul
from tensor_graphs.language.composites.arithmetic import neg as neg
from tensor_graphs.language.composites.arithmetic import not_equal as not_equal
from tensor_graphs.language.composites.arithmetic import pow as pow
from tensor_graphs.language.composites.arithmetic import reduce_max as reduce_max
from tensor_graphs.language.composites.arithmetic import reduce_min as reduce_min
from tensor_graphs.language.composites.arithmetic import right_shift as right_shift
from tensor_graphs.language.composites.arithmetic import round as round
from tensor_graphs.language.composites.arithmetic import rsqrt as rsqrt
from tensor_graphs.language.composites.arithmetic import sign as sign
from tensor_graphs.language.composites.arithmetic import square as square
from tensor_graphs.language.composites.arithmetic import sub as sub
from tensor_graphs.language.composites.arithmetic import sum as sum
from tensor_graphs.language.composites.arithmetic import trunc as trunc
from tensor_graphs.language.composites.arithmetic import where as where
from tensor_graphs.language.composites.batches import attention as attention
from tensor_graphs.language.composites.constructors import arange as arange
from tensor_graphs.language.composites.constructors import full as full
from tensor_graphs.language.composites.constructors import ones as ones
from tensor_graphs.language.composites.constructors import tril as tril
from tensor_graphs.language.composites.constructors import triu as triu
from tensor_graphs.language.composites.constructors import zeros as zeros
from tensor_graphs.language.composites.convolution import conv as conv
from tensor_graphs.language.composites.convolution import conv1d as conv1d
from tensor_graphs.language.composites.convolution import conv2d as conv2d
from tensor_graphs.language.composites.convolution import conv3d as conv3d
from tensor_graphs.language.composites.einsum import einsum as einsum
from tensor_graphs.language.composites.elementary import cos as cos
from tensor_graphs.language.composites.elementary import erf as erf
from tensor_graphs.language.composites.elementary import erfc as erfc
from tensor_graphs.language.composites.elementary import exp as exp
from tensor_graphs.language.composites.elementary import expm1 as expm1
from tensor_graphs.language.composites.elementary import gelu as gelu
from tensor_graphs.language.composites.elementary import log as log
from tensor_graphs.language.composites.elementary import log1p as log1p
from tensor_graphs.language.composites.elementary import relu as relu
from tensor_graphs.language.composites.elementary import sigmoid as sigmoid
from tensor_graphs.language.composites.elementary import silu as silu
from tensor_graphs.language.composites.elementary import softplus as softplus
from tensor_graphs.language.composites.elementary import tan as tan
from tensor_graphs.language.composites.elementary import tanh as tanh
from tensor_graphs.language.composites.gated import gated as gated
from tensor_graphs.language.composites.indexing import argmax as argmax
from tensor_graphs.language.composites.indexing import concat as concat
from tensor_graphs.language.composites.indexing import cumsum as cumsum
from tensor_graphs.language.composites.indexing import embedding as embedding
from tensor_graphs.language.composites.indexing import flip as flip
from tensor_graphs.language.composites.indexing import linear_argmax as linear_argmax
from tensor_graphs.language.composites.indexing import one_hot as one_hot
from tensor_graphs.language.composites.indexing import prod as prod
from tensor_graphs.language.composites.indexing import split as split
from tensor_graphs.language.composites.indexing import stack as stack
from tensor_graphs.language.composites.indexing import topk as topk
from tensor_graphs.language.composites.normalisation import batch_norm as batch_norm
from tensor_graphs.language.composites.normalisation import cross_entropy as cross_entropy
from tensor_graphs.language.composites.normalisation import group_norm as group_norm
from tensor_graphs.language.composites.normalisation import layer_norm as layer_norm
from tensor_graphs.language.composites.normalisation import log_softmax as log_softmax
from tensor_graphs.language.composites.normalisation import logsumexp as logsumexp
from tensor_graphs.language.composites.normalisation import mean as mean
from tensor_graphs.language.composites.normalisation import rms_norm as rms_norm
from tensor_graphs.language.composites.normalisation import softmax as softmax
from tensor_graphs.language.composites.normalisation import var as var
from tensor_graphs.language.composites.positions import rope as rope
from tensor_graphs.language.composites.positions import rope_table as rope_table
from tensor_graphs.language.composites.products import dot as dot
from tensor_graphs.language.composites.products import gather_linear as gather_linear
from tensor_graphs.language.composites.products import linear as linear
from tensor_graphs.language.composites.products import scaled_linear as scaled_linear
from tensor_graphs.language.composites.random import normal as normal
from tensor_graphs.language.composites.random import random_bits as random_bits
from tensor_graphs.language.composites.random import threefry2x32 as threefry2x32
from tensor_graphs.language.composites.random import uniform as uniform
from tensor_graphs.language.composites.scan import scan as scan
from tensor_graphs.language.composites.upsampling import upsample as upsample
from tensor_graphs.language.composites.windows import avg_pool as avg_pool
from tensor_graphs.language.composites.windows import avg_pool1d as avg_pool1d
from tensor_graphs.language.composites.windows import avg_pool2d as avg_pool2d
from tensor_graphs.language.composites.windows import max_pool as max_pool
from tensor_graphs.language.composites.windows import max_pool1d as max_pool1d
from tensor_graphs.language.composites.windows import max_pool2d as max_pool2d
from tensor_graphs.language.composites.windows import windows as windows
from tensor_graphs.language.composites.writes import write_at as write_at
from tensor_graphs.language.composites.writes import write_at_index as write_at_index
from tensor_graphs.language.composites.writes import write_rows as write_rows
