"""foreign_names: names in numpy and torch -> the names in this package, for errors about a name that does not exist."""

from __future__ import annotations

FUNCTIONS: dict[str, tuple[str, ...]] = {
    "matmul": ("dot", "linear"), "mm": ("dot",), "bmm": ("dot",), "tensordot": ("dot",), "inner": ("dot",), "array": ("constant",),
    "asarray": ("constant",), "as_tensor": ("constant",), "from_numpy": ("constant",), "tensor": ("constant",),
    "Tensor": ("input", "constant"), "placeholder": ("input",), "Input": ("input",), "Parameter": ("parameter",),
    "Variable": ("state",), "concatenate": ("concat",), "cat": ("concat",), "hstack": ("concat",), "vstack": ("concat",),
    "transpose": ("permute",), "swapaxes": ("permute",), "moveaxis": ("permute",), "astype": ("cast",), "view": ("reshape",),
    "flatten": ("reshape",), "ravel": ("reshape",), "squeeze": ("reshape",), "unsqueeze": ("reshape",),
    "expand_dims": ("reshape",), "broadcast_to": ("expand",), "repeat": ("tile", "repeat_interleave"),
    "take": ("gather",), "bucketize": ("searchsorted",), "digitize": ("searchsorted",), "identity": ("eye",),
    "scatter_add": ("put_along_axis", "scatter"), "scatter_reduce": ("put_along_axis",), "index_add": ("scatter",),
    "gather_elements": ("take_along_axis",), "scatter_elements": ("put_along_axis",), "diag": ("diagonal", "eye"),
    "index_select": ("gather",), "absolute": ("abs",), "negative": ("neg",), "subtract": ("sub",),
    "multiply": ("mul",), "divide": ("div",), "true_divide": ("div",), "floor_divide": ("floor_div",), "power": ("pow",),
    "remainder": ("mod",), "eq": ("equals",), "ne": ("not_equal",), "lt": ("less",), "le": ("less_equal",),
    "gt": ("greater",), "ge": ("greater_equal",), "logical_and": ("bit_and",), "logical_or": ("bit_or",),
    "logical_xor": ("bit_xor",), "bitwise_and": ("bit_and",), "bitwise_or": ("bit_or",), "bitwise_xor": ("bit_xor",),
    "invert": ("logical_not",), "bitwise_left_shift": ("left_shift",), "bitwise_right_shift": ("right_shift",),
    "isnan": ("is_nan",), "isfinite": ("is_finite",), "isinf": ("is_inf",), "amax": ("max",), "amin": ("min",),
    "clamp": ("clip",), "swish": ("silu",), "hard_swish": ("hardswish",), "logsigmoid": ("log_sigmoid",),
    "expit": ("sigmoid",), "logistic": ("sigmoid",), "std": ("sqrt", "var"), "chunk": ("split",), "linspace": ("arange",),
    "rand": ("uniform",), "randn": ("normal",), "layernorm": ("layer_norm",), "rmsnorm": ("rms_norm",),
    "unfold": ("windows",), "sliding_window_view": ("windows",), "im2col": ("windows",), "convolution": ("conv",),
    "maxpool": ("max_pool",), "avgpool": ("avg_pool",), "average_pool": ("avg_pool",),
    "LSTM": ("lstm",), "GRU": ("gru",), "RNN": ("rnn",), "arctan": ("atan",), "arcsin": ("asin",),
    "arccos": ("acos",), "arctan2": ("atan2",), "arcsinh": ("asinh",), "arccosh": ("acosh",), "arctanh": ("atanh",),
    "gammaln": ("lgamma",), "loggamma": ("lgamma",), "psi": ("digamma",), "interpolate": ("resize", "upsample"),
    "groupnorm": ("group_norm",), "batchnorm": ("batch_norm",),
    "scaled_dot_product_attention": ("attention",), "half": ("f16",), "double": ("f64",), "bool": ("bool_",), "float": ("f32",),
    "int": ("i32",), "long": ("i64",), "jit": ("compile",), "function": ("graph",), "Model": ("load_model",),
    "load": ("load_model",), "from_pretrained": ("load_model",), "run": ("compile", "bind"), "evaluate": ("interpret",),
    "benchmark": ("profile",), "backward": ("grad",), "Function": ("composite",),
}  # fmt: skip
"""a function, dtype or class of numpy or torch -> the names in this package for the same thing"""

_NO_COMPLEX = "no dtype is complex: real and imaginary parts are two tensors"
_NO_FOURIER = "there are no Fourier transforms; of n points it is tg.dot with constant matrices, cos and sin of 2 · π · j · k / n"
_NO_SIZE = "the size of its result would depend on values, and sizes are known before a run; tg.where and tg.topk keep them"
ABSENT: dict[str, str] = {
    **dict.fromkeys(("fft", "ifft", "rfft", "irfft", "fft2", "ifft2", "rfft2", "fftn", "stft", "istft", "dft"), _NO_FOURIER),
    **dict.fromkeys(("complex", "complex64", "complex128", "view_as_complex", "view_as_real", "real", "imag", "conj", "angle"),
                    _NO_COMPLEX),
    **dict.fromkeys(("nonzero", "argwhere", "unique", "masked_select", "compress"), _NO_SIZE),
}
"""a name of numpy or torch for which there is nothing here -> why, and what to write"""

VALUES = frozenset({"item", "numpy", "tolist", "detach", "cpu", "cuda", "data", "values", "eval", "tobytes", "to_numpy"})
"""methods and attributes of arrays that read values, which a tensor of a graph does not have"""

METHODS: dict[str, str] = {
    "astype": "x.cast(dtype)", "to": "x.cast(dtype)", "type_as": "x.cast(dtype)", "float": "x.cast(tg.f32)",
    "half": "x.cast(tg.f16)", "double": "x.cast(tg.f64)", "int": "x.cast(tg.i32)", "long": "x.cast(tg.i64)",
    "bool": "x.cast(tg.bool_)", "view": "x.reshape(…)",
    "flatten": "x.reshape(…)", "ravel": "x.reshape(…)", "squeeze": "x.reshape(…)", "unsqueeze": "x[None]",
    "matmul": "x @ y", "mm": "x @ y", "bmm": "x @ y", "ndim": "x.rank", "dim": "x.rank", "size": "x.shape", "numel": "x.shape",
    "swapaxes": "x.transpose(axis1, axis2)", "t": "x.T", "mT": "x.T", "backward": "tg.grad(loss, parameters)",
    "clone": "x itself: nothing changes it", "copy": "x itself: nothing changes it", "contiguous": "x itself: kernels see to it",
}  # fmt: skip
"""a method or attribute of an array -> what to write for a tensor of a graph"""


def function_meant(name: str) -> str:
    """Return the fix for the name of a function of numpy or torch; "" for any other name."""
    if name in ABSENT:
        return ABSENT[name]
    return f"did you mean {' or '.join(f'tg.{n}' for n in FUNCTIONS[name])}?" if name in FUNCTIONS else ""
