"""cuda_tiles: products on tensor cores in one launch with what follows them (`gencuda.tiles`, `gencuda.turned`, `gencuda.skinny`).

The stages after the sums become the function `ended` of a template (kernels/cuda/tensor_tiles.cu, skinny_product.cu), which runs on
sums in registers; one result is loaded and stored instead of two, and a launch is saved for each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from tensor_graphs.codegen import spec_to_loops
from tensor_graphs.codegen.epilogue_products import EpilogueProduct
from tensor_graphs.codegen.loop_ir import computed_in, index_symbol, products_alone
from tensor_graphs.codegen.mapping.nest_mapper import split
from tensor_graphs.codegen.print.cuda_loops import CudaValues, index_type
from tensor_graphs.codegen.print.values import STORED, c_of, c_type
from tensor_graphs.devices import nvrtc
from tensor_graphs.kernels.cuda import matrix_products as p
from tensor_graphs.kernels.cuda.backend import TENSOR_CORES, of_tiles
from tensor_graphs.kernels.cuda.matrix_products import Printed
from tensor_graphs.kernels.cuda.source_text import FLOATS, FROM_80, read
from tensor_graphs.kernels.kernel import ANY_OP, Kernel, LaunchCall, NotLowered, Preparation, Spec
from tensor_graphs.language import dims as d
from tensor_graphs.language.anonymous_composite import PartOp
from tensor_graphs.language.composite import LIBRARY, Definition
from tensor_graphs.language.defined_ops import DefinedOp
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import f32
from tensor_graphs.language.node import Node, TensorType, walk


class _Ended(CudaValues):
    """The function `ended` of a template."""

    def lines(self, product: EpilogueProduct) -> list[str]:
        write = self.write
        write.open(p.ENDED)
        self.scopes = [set()]
        for name, axes in (("row", product.rows), ("column", product.columns)):
            write(f"const index_t _{name} = (index_t){name};")
            for axis, index in split(index_symbol(f"_{name}", d.dim_max(2, d.product(a.size for a in axes))), axes):
                write(f"const index_t {axis} = {c_of(index)};")
        for k, s in enumerate(product.sums):
            write(f"const float {s.target.name} = sums.at[{k}];")
        for s in product.after:
            self.declare(s.value)
            if s is not product.after[-1]:
                write(f"const {c_type(s.target.dtype)} {s.target.name} = {self.ref(s.value)};")
        write(f"return {self.ref(product.after[-1].value) if product.after else 'sums.at[0]'};")
        write.close()
        return write.lines


@dataclass(frozen=True)
class TileTemplate:
    """A kernel by hand into which the stages are printed. name, alone: marks of the kernel, and of the one of products alone. call:
    of the spec of one product, and what is printed. takes, traffic, steps: of that spec; steps: and of how many weights. arch: GPUs
    that have its instructions. prepared: weights of f32 come as parts. shape: the rule's, of that spec and of how many weights,
    where tiles may have others (tile_schedule.py). turned: rows of a tile are those of a weight."""

    name: str
    alone: str
    files: str
    call: Callable[..., LaunchCall]
    takes: Callable[[Spec], str | None]
    traffic: Callable[[Spec], Dim]
    steps: Callable[[Spec, int], Dim]
    arch: tuple[str, ...] = ("sm_90",)
    prepared: bool = True
    shape: Callable[[Spec, int], p.TileShape] | None = None
    turned: bool = False


TEMPLATES = (
    TileTemplate("tiles", "tensor", p.BY_TILES, p.product, p.product_takes, p.product_traffic, p.product_steps,
                 shape=p.product_shape),
    TileTemplate("turned", "turned", p.BY_TILES, p.turned, partial(p.turned_takes, p.product_takes),
                 partial(p.product_traffic, boxed=p.BOXED_ROWS), p.turned_steps, shape=p.turned_shape, turned=True),
    TileTemplate("skinny", "skinny", p.OF_FEW_ROWS, p.skinny, p.skinny_takes, p.skinny_traffic,
                 lambda spec, weights: p.skinny_steps(spec) * weights, FROM_80, False))
"""tiles of many rows; tiles whose rows are those of the weights, for a few dozen rows; weights from memory to registers, for few"""


def kernels(backend: str) -> list[Kernel]:
    """Return a kernel for each template."""
    return [Kernel(name=f"{backend}.{t.name}", backend=backend, op=ANY_OP, build=partial(build, t), accepts=partial(refuse, t),
                   source=f"the stages after a product's sums, in: {read(f'{p.SUMS} {t.files}')}", module=__name__,
                   toolchain=nvrtc.made_with(TENSOR_CORES), contiguous=True, requirements={"arch": t.arch},
                   prepare=prepares if t.prepared else None, traffic=partial(traffic, t), arithmetic=partial(arithmetic, t),
                   extends=partial(extends, t))
            for t in TEMPLATES]


def refuse(template: TileTemplate, spec: Spec) -> str | None:
    """Return why a spec is no product with steps after it that a template computes; None where it is one."""
    try:
        product = _product(spec)
        if template.call is not p.product and product.across:
            return "a weight that lies across"
        return template.takes(_spec_of(product, same_dtype=True))
    except NotLowered as e:
        return str(e)


def build(template: TileTemplate, spec: Spec) -> LaunchCall:
    """Return the call; its text is compiled when a plan needs it. Raises NotLowered."""
    return call_of(template, spec_to_loops.definition_of(spec))


def prepares(spec: Spec) -> tuple[Preparation, ...]:
    """Return the preparations of f32 weights: their bf16 parts. Raises NotLowered."""
    product = _product(spec)
    return p.product_prepares(_spec_of(product), [w.number for w in product.weights])


def extends(template: TileTemplate, spec: Spec) -> tuple[str, Node]:
    """Return the kernel of products alone of a template, and the product in a spec."""
    node = next(_products_in(spec_to_loops.definition_of(spec).outputs))
    return f"cuda.{node.op.name}_{template.alone}", node


def traffic(template: TileTemplate, spec: Spec) -> Dim:
    """Return the bytes moved: operands and the result. Raises NotLowered."""
    product = _product(spec)
    one, multiplied = _spec_of(product), (product.x, *product.weights)
    others: Dim = sum(a.size * a.dtype.itemsize for a in product.program.operands if a not in multiplied)
    apart = sum(d.product(t.shape) * t.dtype.itemsize for t in (one.inputs[0], one.outputs[0]))     # once for both weights
    return template.traffic(one) * len(product.weights) + others - apart * (len(product.weights) - 1)


def arithmetic(template: TileTemplate, spec: Spec) -> Dim:
    """Return the operations as other tensor-core kernels count them. Raises NotLowered."""
    product = _product(spec)
    return of_tiles(lambda spec: template.steps(spec, len(product.weights)), _spec_of(product))


def with_shape(template: TileTemplate, definition: Definition, shape: p.TileShape) -> LaunchCall:
    """Return the call with tiles of another shape. Raises NotLowered."""
    product = spec_to_loops.tiles_of(definition)
    return template.call(_spec_of(product), printed=printed(product, template.prepared), shape=shape)


def product_of(spec: Spec) -> tuple[Spec, int]:
    """Return the spec of one of the products of a spec alone, and how many there are. Raises NotLowered."""
    product = _product(spec)
    return _spec_of(product), len(product.weights)


def _products_in(outputs: Sequence[Node]) -> Iterator[Node]:
    for n in walk(outputs):
        if n.op.facts.product:
            yield n
        elif isinstance(n.op, PartOp):
            yield from _products_in(n.op.written.outputs)


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
def call_of(template: TileTemplate, definition: Definition) -> LaunchCall:
    """Return the call that computes a definition by a template. Raises NotLowered."""
    product = spec_to_loops.tiles_of(definition)
    return template.call(_spec_of(product), printed=printed(product, template.prepared))


def printed(product: EpilogueProduct, prepared: bool) -> Printed:
    """Return the text of the operands and of `ended`. prepared: weights of f32 come as parts, too."""
    program, of_w = product.program, product.weights
    parts = [f"w_parts{k}" for k in range(len(of_w))] if prepared and p.is_prepared(_spec_of(product)) else []
    sizes = (a.size for a in (*program.outputs, *program.operands))
    ended = _Ended(program.gathered, [str(s) for s in program.dims], products_alone(program))
    operands = [(STORED[a.dtype.name], a.name) for a in program.operands] + [("uint16_t", name) for name in parts]
    lines = ["/* " + str(program).replace("\n", "\n * ").replace("*/", "* /") + " */",
             f"typedef {index_type(*sizes)} index_t;", *ended.lines(product)]
    text = p.printed_operands(operands, product.x.name, [w.name for w in of_w], lines)
    narrow = computed_in(program.outputs[0].dtype) is not program.outputs[0].dtype
    return Printed(text, len(program.operands), product.x.number, tuple(w.number for w in of_w),
                   "#define NARROW\n" if narrow else "")
