"""roofline_chart: compares a plan's steps with the least times that the device allows, as a table of kernels and a roofline chart.

The least time of a step is the larger of bytes / memory bandwidth and arithmetic / the device's flop/s for its dtype, both rates as
calibration measured them (measure/rates/table.py, gpu.py). Time beyond the least is lost; the table is sorted by lost time.
Source: roofline model, Williams, Waterman and Patterson, CACM 52(4), 2009.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tensor_graphs.costs.database_keys import environment_of
from tensor_graphs.costs.measured_rates import BEATEN, FLOPS, READ, prior_rates
from tensor_graphs.costs.roofline import work
from tensor_graphs.devices.device_registry import HOST, device_named
from tensor_graphs.kernels.kernel import Kernel, Spec
from tensor_graphs.kernels.registry import device_of, why_missing
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.language import dims as d
from tensor_graphs.paths.fit_terminal import duration, human
from tensor_graphs.paths.path import is_way_on
from tensor_graphs.paths.plan import Evidence, Plan
from tensor_graphs.records.database import Database
from tensor_graphs.records.measurements import constants
from tensor_graphs.views import charts

FLOPS_F64, FLOPS_BF16 = "flops_f64", "flops_bf16_weights"
NAMES = (FLOPS, FLOPS_F64, FLOPS_BF16, "flops_bf16", "flops_f16", "flops_f8e4m3")

MEASURED = "measured"

LARGEST, SMALLEST = 15.0, 3.0
"""Radius in pixels of a step that takes all of the time, and of a step that takes none."""

COLOURS = ("#36c", "#c33", "#2e8b57", "#8e44ad", "#d08000")


@dataclass(frozen=True)
class Roof:
    """Rates of a device: memory bandwidth in byte/s, flop/s by name of the constant. source: origin of the rates, for people."""

    device: str
    bandwidth: float
    flops: Mapping[str, float]
    source: str

    @property
    def measured(self) -> bool:
        return self.source.startswith(MEASURED)

    @staticmethod
    def of(device: str, database: Database, backends: Sequence[str], threads: int | None = None) -> Roof:
        """Return the best rates that were measured for these backends on a device, else priors."""
        rows = [constants(database, environment_of(b, threads), device) for b in backends if why_missing(b) is None]
        best: dict[str, float] = {}
        for name, row in (item for r in rows for item in r.items()):
            best[name] = max(best.get(name, 0.0), row.value)
        peaks, prior = device_named(device).peaks(), prior_rates(device_named(device))
        assumed = {READ: prior.bandwidth, FLOPS: prior.flops, **peaks}
        if READ not in best or FLOPS not in best:
            best, source = {}, "at most, by its clocks and units" if {READ, FLOPS} <= peaks.keys() else "priors"
        else:
            rest = ", ".join(_said(name) for name in NAMES if name in peaks and name not in best)
            source = f"{MEASURED}; {rest} at most, by its clocks and units" if rest else MEASURED
        peaks = {**assumed, **best}
        return Roof(device, peaks[READ], {name: peaks[name] for name in NAMES if name in peaks}, source)

    def raised(self, steps: Sequence[Stood]) -> Roof:
        """Return the roof with peaks raised to the speed of measured matrix products on the host that exceed them. Only products
        that do all the arithmetic of their definition count."""
        beaten = {s.peak: s for s in sorted(steps, key=lambda s: s.speed) if s.product and s.device == self.device
                  and s.speed > BEATEN * self.flops[s.peak]} if self.measured and self.device == HOST.name else {}
        if not beaten:
            return self
        reasons = "; ".join(f"{_said(name)} was measured as {_speed(self.flops[name])}, and {s.kernel} reaches more"
                         for name, s in beaten.items())
        return replace(self, flops={**self.flops, **{name: s.speed for name, s in beaten.items()}},
                       source=f"{self.source}; {reasons}: tg devices --measure")

    def peak(self, spec: Spec) -> str:
        """Return the name of the constant that limits a step's arithmetic: by its widest operands; f32's where that constant is
        unknown, and on a GPU for all ops but matrix products, as tensor cores do not compute these."""
        names = {t.dtype.name for t in (*spec.inputs, *spec.outputs)}
        if "f64" in names or FLOPS_BF16 in self.flops:
            wanted = FLOPS_F64 if "f64" in names else FLOPS_BF16 if "bf16" in names else FLOPS
        else:
            floats = [t.dtype for t in spec.inputs if t.dtype.is_float]
            wanted = f"flops_{max(floats, key=lambda t: t.itemsize).name}" if floats and spec.op.facts.product else FLOPS
        return wanted if wanted in self.flops else FLOPS

    def __str__(self) -> str:
        peaks = [f"{_said(name)} {_speed(value)}" for name, value in self.flops.items()]
        return f"{self.device}: read {self.bandwidth / 1e9:.1f} GB/s, {', '.join(peaks)} ({self.source})"


def _said(name: str) -> str:
    """Return the name of a peak for people: "bf16 weights"."""
    return name.removeprefix("flops_").replace("_", " ")


def _speed(value: float) -> str:
    return f"{f'{value / 1e12:.1f} T' if value >= 1e13 else f'{value / 1e9:.1f} G'}flop/s"


@dataclass(frozen=True)
class Stood:
    """A step of a plan compared with its roof. seconds, nbytes, flops: of one call. least: seconds at the roof. bound: the limit
    that decides, "memory" or "arithmetic". peak: name of the constant that limits its arithmetic. signature: its key. product: True
    for a measured matrix product that does all the arithmetic of its definition."""

    what: str
    kernel: str
    device: str
    calls: int
    seconds: float
    measured: bool
    nbytes: float
    flops: float
    least: float
    bound: str
    peak: str
    signature: str = ""
    product: bool = False

    @staticmethod
    def of(e: Evidence, kernel: Kernel, signature: Signature, at: Mapping[str, int], roof: Roof) -> Stood:
        """Return the step as a kernel computes it at these sizes."""
        nbytes, flops = work(signature, tuple(sorted(at.items())))
        nbytes = nbytes if kernel.traffic is None else float(d.evaluate(kernel.traffic(signature.spec), at))
        if kernel.arithmetic is not None and roof.device == HOST.name:  # a GPU kernel's serves estimates: in units of f32
            flops = float(d.evaluate(kernel.arithmetic(signature.spec), at))
        facts = signature.spec.op.facts
        return Stood(e.title, kernel.name, roof.device, e.calls, e.seconds, e.measured, nbytes, flops, 0.0, "",
                     roof.peak(signature.spec), e.signature, e.measured and facts.product and not facts.closed).below(roof)

    def below(self, roof: Roof) -> Stood:
        """Return the step compared with another roof."""
        moved, computed = self.nbytes / roof.bandwidth, self.flops / roof.flops[self.peak]
        return replace(self, least=max(moved, computed), bound="memory" if moved >= computed else "arithmetic")

    @property
    def speed(self) -> float:
        """Speed [flop/s]."""
        return self.flops / self.seconds if self.seconds else 0.0

    @property
    def share(self) -> float:
        """Least time / time; above 1 where the step reads from caches, or moves fewer bytes than its operands have."""
        return self.least / self.seconds if self.seconds else 1.0

    @property
    def lost(self) -> float:
        """Seconds of a run beyond the roof's least time."""
        return max(0.0, self.seconds - self.least) * self.calls

    def to_json(self) -> dict[str, Any]:
        return {"what": self.what, "kernel": self.kernel, "device": self.device, "calls": self.calls,
                "us_per_call": self.seconds * 1e6, "measured": self.measured,
                "bytes": self.nbytes, "flops": self.flops, "gb_per_s": self.nbytes / self.seconds / 1e9,
                "gflop_per_s": self.flops / self.seconds / 1e9, "least_us": self.least * 1e6, "bound": self.bound,
                "share_of_roof": self.share, "lost_us": self.lost * 1e6}


@dataclass(frozen=True)
class KernelTable:
    """Steps of a variant, those that lose the most time first."""

    at: Mapping[str, int]
    roofs: tuple[Roof, ...]
    steps: tuple[Stood, ...]

    @property
    def seconds(self) -> float:
        return sum(s.seconds * s.calls for s in self.steps)

    @property
    def least(self) -> float:
        return sum(s.least * s.calls for s in self.steps)

    def to_json(self) -> dict[str, Any]:
        return {"at": dict(self.at), "us": self.seconds * 1e6, "least_us": self.least * 1e6,
                "roofs": [{"device": r.device, "bandwidth": r.bandwidth, "flops": dict(r.flops), "measured": r.measured}
                          for r in self.roofs],
                "kernels": [s.to_json() for s in self.steps]}

    def lines(self, rows: int) -> list[str]:
        """Return lines for people: the roofs, and one line for each of the first `rows` steps."""
        sizes = ", ".join(f"{n}={s}" for n, s in self.at.items())
        out = [f"roof of {roof}" for roof in self.roofs]
        out += [] if all(r.measured for r in self.roofs) else ["note: tg devices --measure measures the roof"]
        share = self.least / self.seconds if self.seconds else 1.0
        where = f" at {sizes}" if sizes else ""
        out += [f"all steps{where}: {duration(self.seconds)}, at the roof {duration(self.least)} ({share:.0%})",
                "       lost      of a call  calls      bytes     GB/s  Gflop/s  of roof"]
        for i, s in enumerate(self.steps[:rows], 1):
            out.append(f"{i:3d} {duration(s.lost):>9s} {duration(s.seconds):>12s} × {s.calls:<4d} {human(s.nbytes):>9s} "
                       f"{s.nbytes / s.seconds / 1e9:8.1f} {s.flops / s.seconds / 1e9:8.1f} {s.share:7.0%} {s.bound:10s} "
                       f"{s.kernel:18s} {'' if s.measured else 'estimate '}{s.what[:58]}")
        if len(self.steps) > rows:
            out.append(f"    {duration(sum(s.lost for s in self.steps[rows:])):>9s} in {len(self.steps) - rows} more (--rows)")
        return out


def kernel_table(plan: Plan, database: Database, sizes: Mapping[str, int] | None = None, threads: int | None = None) -> KernelTable:
    """Return the steps of the variant that serves these sizes (default: those it was costed at), at the sizes it was costed at."""
    v = plan.variant({**plan.variants[0].at, **(sizes or {})})
    sizes_of_plan = {n: int(s) for n, s in v.at.items()}
    roofs: dict[str, Roof] = {}
    steps = []
    for e in v.evidence:
        kernel, signature = v.kernels.get(e.chosen), v.program.signatures.get(e.signature)
        if is_way_on(e.chosen) or not e.calls or kernel is None or signature is None:
            continue
        device = device_of(kernel.backend).name
        if device not in roofs:
            roofs[device] = Roof.of(device, database, [b for b in plan.backends if device_of(b).name == device], threads)
        steps.append(Stood.of(e, kernel, signature, {n: sizes_of_plan[n] for n in signature.dim_names}, roofs[device]))
    roofs = {device: roof.raised(steps) for device, roof in roofs.items()}
    steps = [s.below(roofs[s.device]) for s in steps]
    return KernelTable(sizes_of_plan, tuple(roofs.values()), tuple(sorted(steps, key=lambda s: -s.lost)))


def picture(table: KernelTable, title: str) -> str:
    """Return an SVG picture of the steps below the roof, by arithmetic per byte and speed; numbers are rows of the table."""
    drawn = [(i, s) for i, s in enumerate(table.steps, 1) if s.flops and s.seconds]
    peaks = {(r.device, name): value for r in table.roofs for name, value in r.flops.items()
             if any((s.device, s.peak) == (r.device, name) for _, s in drawn)}
    bandwidth = {r.device: r.bandwidth for r in table.roofs}
    ridge = {(device, name): peak / bandwidth[device] for (device, name), peak in peaks.items()}
    xs = [*(s.flops / s.nbytes for _, s in drawn if s.nbytes), *ridge.values()]
    low, high = (min(xs) / 2, max(xs) * 2) if xs else (0.1, 10.0)
    x, x_ticks = charts.axis([low, high], charts.LEFT, charts.WIDTH - charts.RIGHT)
    roof_ys = [min(peak, bandwidth[device] * at) / 1e9 for (device, _), peak in peaks.items() for at in (low, high)]
    y, y_ticks = charts.axis([*(s.flops / s.seconds / 1e9 for _, s in drawn), *roof_ys], charts.HEIGHT - charts.BOTTOM, charts.TOP)
    left_out = len(table.steps) - len(drawn)
    missing = f" · {left_out} without arithmetic left out" if left_out else ""
    out = charts.opened(title, f"larger: more of the time · hollow: estimate{missing}")
    out += charts.frame([(x(t), f"{t:g}") for t in x_ticks], [(y(t), f"{t:.3g}") for t in y_ticks],
                     "arithmetic per byte [flop/byte], logarithmic", "speed [Gflop/s], logarithmic")
    for number, ((device, name), peak) in enumerate(peaks.items()):
        colour, bend = COLOURS[number % len(COLOURS)], min(max(ridge[device, name], low), high)
        rising = min(peak, bandwidth[device] * low) / 1e9, min(peak, bandwidth[device] * bend) / 1e9
        label = f"{device} {name.removeprefix('flops_')} {peak / 1e9:.1f} Gflop/s, {bandwidth[device] / 1e9:.1f} GB/s"
        out += [charts.line(x(low), y(rising[0]), x(bend), y(rising[1]), colour),
                charts.line(x(bend), y(rising[1]), x(high), y(rising[1]), colour),
                charts.text(x(high) - 4, y(rising[1]) - 6, label, anchor="end", colour=colour)]
    points = charts.Circles()
    for i, s in drawn:
        part = s.seconds * s.calls / table.seconds
        label = (f"{i}: {s.kernel} {s.what}, {duration(s.seconds)} × {s.calls}, {s.share:.0%} of its roof ({s.bound}), "
                f"{duration(s.lost)} lost")
        colour = COLOURS[list(peaks).index((s.device, s.peak)) % len(COLOURS)]
        points.add((x(s.flops / max(s.nbytes, 1.0)), y(s.flops / s.seconds / 1e9)), str(i), label, colour, filled=s.measured,
                   radius=round(SMALLEST + (LARGEST - SMALLEST) * math.sqrt(part), 1))
    return charts.closed([*out, *points.lines])
