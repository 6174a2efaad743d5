"""rewrites: lists graphs that mean the same as a graph, the rules that derive them, and the derivation steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tensor_graphs.cli import options

if TYPE_CHECKING:
    from tensor_graphs.language.graph import Graph
    from tensor_graphs.rewrites.report import Report


def rewrites(
    file: Annotated[str, typer.Argument(metavar="FILE.tg", help="A .tg file.")],
    level: Annotated[str, typer.Option(help="bitwise: the same bits; reassociating: the same real number.")] = "reassociating",
    limit: Annotated[int, typer.Option(min=1, help="How many recipes to list.")] = 10,
    derive: Annotated[int, typer.Option(min=-1, help="Show how this recipe is derived, step by step (-1: none).")] = -1,
    to: Annotated[str, typer.Option(metavar="B.tg", help="Show how the graph of another file is derived.")] = "",
    assuming: Annotated[list[str], typer.Option(help="Take for granted: 'no overflow', …; may be repeated.")] = [],  # noqa: B006
    split: Annotated[bool, typer.Option("--split", help="Also halve reductions and attention.")] = False,
    depth: Annotated[int, typer.Option(min=1, help="How many expanding rules may follow each other.")] = 3,
    seconds: Annotated[float, typer.Option(min=0.0, help="Stop looking after so long.")] = 10.0,
    find: Annotated[
        list[str], typer.Option("--discover", metavar="COMPOSITE", help="Say where its math occurs ('all': any); may be repeated.")
    ] = [],  # noqa: B006
    report: Annotated[bool, typer.Option("--report", help="Add a table: matches, applied, rejected, … of each rule.")] = False,
    imports: options.Imports = None,
    json: options.Json = False,
) -> None:
    """List graphs that mean the same, those of the fewest paid nodes (steps at run time) first, with the rules that lead there."""
    from tensor_graphs.language.text_writer import print_graph
    from tensor_graphs.meaning.assumptions import CONDITIONS
    from tensor_graphs.rewrites.extract import paid_nodes
    from tensor_graphs.rewrites.provenance import show_steps
    from tensor_graphs.rewrites.recipes import recipes
    from tensor_graphs.rewrites.rule import LEVELS
    from tensor_graphs.rewrites.rules import allowed
    from tensor_graphs.rewrites.saturate import Budget
    from tensor_graphs.rewrites.user_rules import user_rules

    options.known("--level", [level], LEVELS)
    assuming = [name.replace(">=", "≥") for name in assuming]
    options.known("--assuming", assuming, tuple(CONDITIONS))
    if derive >= limit:
        raise options.UsageError(f"--derive {derive}: only {limit} recipes are listed, from 0 on\n  fix: --limit {derive + 1}")
    graph = options.read_graph(file)
    if find:
        _discover(graph, find, json)
        return
    other = _as_another_form(graph, file, to) if to else None
    forms = recipes(graph, level=LEVELS[LEVELS.index(level)], count=limit, whole=True if to else None,
                    rules=allowed(tuple(assuming), ("split",) if split else ()),
                    budget=Budget(expanding_depth=depth, depth=max(8, depth + 5), rounds=12 + depth, seconds=seconds))
    if derive >= len(forms.list):
        raise options.UsageError(f"--derive {derive}: {len(forms.list)} recipes were found\n  fix: 0 to {len(forms.list) - 1}")
    if other is not None and not forms.holds(other):
        raise options.NotPossible(f"--to {to}: not found equal to {file}{_how_far(forms.report)}\n"
                                  f"  fix: {_what_may_help(assuming, split, forms.report)}")
    steps = forms.derive_graph(other) if other is not None else ()
    derivation = show_steps(forms.saturated.egraph, list(steps)) if to else forms.derivation(derive) if derive >= 0 else ""
    if json:
        options.print_json({
            "level": level, "nodes": len(graph.nodes), "paid": paid_nodes(graph), "derivation": derivation.splitlines(),
            "recipes": [{"nodes": len(r.graph.nodes), "paid": r.paid, "rules": list(r.rules), "graph": print_graph(r.graph)}
                        for r in forms.list], "report": forms.report.as_json()})
        return
    print(f"given: {len(graph.nodes)} nodes, {paid_nodes(graph)} paid")
    for number, r in enumerate(forms.list):
        print(f"{number:3}  {len(r.graph.nodes):4} nodes  {r.paid:3} paid  {', '.join(r.rules) or 'as given'}")
    print("\n" + forms.report.show() if report else forms.report.summary() + "; --report: rule by rule")
    for rule in user_rules():
        if lacking := [name for name in rule.assuming if name not in assuming]:
            options_said = " ".join(f"--assuming {name!r}" for name in lacking)
            print(f"{rule.name} takes no part: it assumes {' and '.join(lacking)}; {options_said}")
    if derivation:
        print("\n" + derivation)
    elif to:
        print(f"\n{to} is the same graph as {file}: no step leads from one to the other")
    elif derive >= 0:
        print(f"\nrecipe {derive} is the graph as given: no step leads there")
    if derive >= 0 and not to:
        print("\n" + print_graph(forms.list[derive].graph), end="")


def _discover(graph: Graph, names: list[str], json: bool) -> None:
    from tensor_graphs.language.composite import LIBRARY
    from tensor_graphs.rewrites.discover import discover

    options.known("--discover", names, tuple(dict.fromkeys(("all", *LIBRARY))))
    places = discover(graph, None if "all" in names else names)
    if json:
        options.print_json({"discovered": [{"composite": p.op.name, "attributes": {k: str(v) for k, v in p.attrs.items()},
                                            "steps": p.steps, "written_at": str(p.node.location),
                                            "verdict": p.verdict.as_json()} for p in places]})
    else:
        print("\n".join(p.show() for p in places) or "nothing was found")


def _as_another_form(graph: Graph, file: str, to: str) -> Graph:
    """Return the graph of --to. Raises NotPossible unless it has the same outputs and state updates, of the same types."""
    other = options.read_graph(to)
    for what, mine, its in (("outputs", graph.outputs, other.outputs), ("state updates", graph.updates, other.updates)):
        here, there = ({name: str(value.type) for name, value in group.items()} for group in (mine, its))
        if here != there:
            raise options.NotPossible(f"--to {to}: its {what} are {_listed(there)}; those of {file} are {_listed(here)}\n"
                                      "  fix: the same names, shapes and dtypes in both files")
    return other


def _listed(types: dict[str, str]) -> str:
    return ", ".join(f"{name} {type}" for name, type in types.items()) or "(none)"


def _how_far(report: Report) -> str:
    if report.stopped:
        return f" before the search stopped: {report.stopped}"
    return "" if all(report.saturated.values()) else " within the budget"


def _what_may_help(assuming: list[str], split: bool, report: Report) -> str:
    """Return options that enable more rules, or a longer search."""
    from tensor_graphs.rewrites.rules import RULES
    from tensor_graphs.rewrites.user_rules import user_rules

    opened: dict[str, list[str]] = {}
    for r in (*user_rules(), *RULES):
        for name in r.assuming:
            if name not in assuming and (split or not r.option):
                opened.setdefault(name, []).append(r.name)
    ways = [f"--assuming \"{name}\" (opens {', '.join([*rules[:3], *['…'][:len(rules) > 3]])})" for name, rules in opened.items()]
    if not split:
        ways.append("--split (halves of reductions)")
    if report.stopped or not all(report.saturated.values()):
        ways.append("a larger --seconds or --depth")
    return "; or ".join([*ways, "tg equal says whether the two are equal at all"])
