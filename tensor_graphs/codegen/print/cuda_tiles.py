"""cuda_tiles: `gencuda.tiles`, products on tensor cores in one launch with what is computed from their elements.

The stages after the sums become the function `ended` of the template (kernels/cuda/tensor_tiles.cu), which runs on a tile's sums
in registers; one result is loaded and stored instead of two, and a launch is saved for each step.
"""

from __future__ import annotations

from functools import lru_cache

from tensor_graphs.codegen import spec_to_loops
from tensor_graphs.codegen.epilogue_products import EpilogueProduct
from tensor_graphs.codegen.loop_ir import computed_in
from tensor_graphs.codegen.print.cuda_source import _Cuda
from tensor_graphs.codegen.print.values import STORED, c_type
from tensor_graphs.devices import nvrtc
from tensor_graphs.kernels.cuda import matrix_products
from tensor_graphs.kernels.cuda.backend import TENSOR_CORES, of_tiles
from tensor_graphs.kernels.cuda.matrix_products import Printed
from tensor_graphs.kernels.cuda.source_text import FLOATS, read
from tensor_graphs.kernels.kernel import ANY_OP, Kernel, LaunchCall, NotLowered, Preparation, Spec
from tensor_graphs.language import dims as d
from tensor_graphs.language.composite import LIBRARY, Definition
from tensor_graphs.language.defined_ops import DefinedOp
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import f32
from tensor_graphs.language.node import TensorType


class _Ended(_Cuda):
    """The function `ended` of a template."""

    def lines(self, product: EpilogueProduct) -> list[str]:
        write = self.write
        write.open("TG_INLINE float ended(const Sums &sums, int64_t row, int64_t column, TG_OPERANDS)")
        self.scopes, self.open_axes = [set()], []
        self.split_index("row", product.rows)
        self.split_index("column", product.columns)
        for k, s in enumerate(product.sums):
            write(f"const float {s.target.name} = sums.at[{k}];")
        for s in product.after:
            self.declare(s.value)
            if s is not product.after[-1]:
                write(f"const {c_type(s.target.dtype)} {s.target.name} = {self.ref(s.value)};")
        write(f"return {self.ref(product.after[-1].value) if product.after else 'sums.at[0]'};")
        write.close()
        return write.lines


def kernel(backend: str) -> Kernel:
    """Return the kernel for the GPUs whose tensor cores the template uses."""
    source = f"the stages after a product's sums, in: {read(f'{matrix_products.SUMS} {matrix_products.BY_TILES}')}"
    return Kernel(name=f"{backend}.tiles", backend=backend, op=ANY_OP, build=build, accepts=refuse, source=source, module=__name__,
                  toolchain=nvrtc.made_with(TENSOR_CORES), contiguous=True, requirements={"arch": ("sm_90",)}, prepare=prepares,
                  traffic=traffic, arithmetic=arithmetic)


def refuse(spec: Spec) -> str | None:
    """Return why a spec is no product with steps after it that tiles compute; None where it is one."""
    try:
        return matrix_products.product_takes(_spec_of(_product(spec), same_dtype=True))
    except NotLowered as e:
        return str(e)


def build(spec: Spec) -> LaunchCall:
    """Return the call; its text is compiled when a plan needs it. Raises NotLowered."""
    return call_of(spec_to_loops.definition_of(spec))


def prepares(spec: Spec) -> tuple[Preparation, ...]:
    """Return the preparations of f32 weights: their bf16 parts. Raises NotLowered."""
    product = _product(spec)
    return matrix_products.product_prepares(_spec_of(product), [w.number for w in product.weights])


def traffic(spec: Spec) -> Dim:
    """Return the bytes moved: operands and the result. Raises NotLowered."""
    product = _product(spec)
    multiplied = (product.x, *product.weights)
    others = sum(a.size * a.dtype.itemsize for a in product.program.operands if a not in multiplied)
    weights = sum(a.size * a.dtype.itemsize for a in product.weights[1:])
    return matrix_products.product_traffic(_spec_of(product)) + others + weights


def arithmetic(spec: Spec) -> Dim:
    """Return the operations as other tensor-core kernels count them. Raises NotLowered."""
    product = _product(spec)
    return of_tiles(matrix_products.product_steps, _spec_of(product)) * len(product.weights)


def _product(spec: Spec) -> EpilogueProduct:
    if not isinstance(spec.op, DefinedOp):
        raise NotLowered("a single op")                             # for which there are other kernels of tiles
    return spec_to_loops.tiles_of(spec_to_loops.definition_of(spec))


def _spec_of(product: EpilogueProduct, same_dtype: bool = False) -> Spec:
    """Return the spec of one of the products alone. same_dtype: with a result of the dtype of x."""
    x, w, y = product.x.dtype, product.weights[0].dtype, product.program.outputs[0].dtype
    if y not in FLOATS or (x is f32 and y is not f32):
        raise NotLowered("a result of f32, bf16 or f16 only, and of f32 from f32")
    rows, columns, inner = d.product(a.size for a in product.rows), product.width, product.inner
    op, shape = ("dot", (inner, columns)) if product.across else ("linear", (columns, inner))
    return Spec(LIBRARY[op], {}, (TensorType((rows, inner), x), TensorType(shape, w)),
                (TensorType((rows, columns), x if same_dtype else y),))


@lru_cache(maxsize=1024)
def call_of(definition: Definition) -> LaunchCall:
    """Return the call that computes a definition by tiles. Raises NotLowered."""
    product = spec_to_loops.tiles_of(definition)
    return matrix_products.product(_spec_of(product), printed=printed(product))


def printed(product: EpilogueProduct) -> Printed:
    """Return the text of the operands and of `ended`."""
    program, of_w = product.program, product.weights
    parts = [f"w_parts{k}" for k in range(len(of_w))] if matrix_products.is_prepared(_spec_of(product)) else []
    ended = _Ended(program, False, "tiles")

    def chosen(names: list[str]) -> str:
        return names[0] if len(names) == 1 else f"((number) ? {names[1]} : {names[0]})"

    operands = [f"const {STORED[a.dtype.name]} * {a.name}" for a in program.operands] + [f"const uint16_t * {p}" for p in parts]
    lines = ["/* " + str(program).replace("\n", "\n * ").replace("*/", "* /") + " */",
             f"typedef {'int64_t' if ended.wide else 'int'} index_t;",
             f"#define TG_OPERANDS {', '.join(operands)}",
             f"#define TG_GIVEN {', '.join([*(a.name for a in program.operands), *parts])}",
             f"#define TG_X {product.x.name}",
             f"#define TG_W(number) {chosen([w.name for w in of_w])}",
             f"#define TG_W_PARTS_OF(number) {chosen(parts) if parts else 'w_parts'}",
             *ended.lines(product)]
    narrow = computed_in(program.outputs[0].dtype) is not program.outputs[0].dtype
    return Printed("\n".join(lines) + "\n", len(program.operands), product.x.number, tuple(w.number for w in of_w),
                   "#define NARROW\n" if narrow else "")
