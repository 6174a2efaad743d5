"""rewrites: what else says the same as a graph, by which rules, and how one becomes the other."""

from __future__ import annotations

from typing import Annotated

import typer

from tensor_graphs.cli import options


def register(app: typer.Typer) -> None:
    app.command("rewrites")(rewrites)


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
    json: options.Json = False,
) -> None:
    """List graphs that mean the same, the cheapest first, with the rules that lead to each."""
    from tensor_graphs.language.text import print_graph
    from tensor_graphs.rewrites.errors import RewriteError
    from tensor_graphs.rewrites.extract import paid_nodes
    from tensor_graphs.rewrites.provenance import show_steps
    from tensor_graphs.rewrites.recipes import recipes
    from tensor_graphs.rewrites.rule import LEVELS
    from tensor_graphs.rewrites.rules import ASSUMPTIONS, allowed
    from tensor_graphs.rewrites.saturate import Budget

    if level not in LEVELS:
        raise RewriteError(f"the level is {level!r}", fix=" or ".join(LEVELS))
    for name in assuming:
        if name not in ASSUMPTIONS:
            raise RewriteError(f"no rule assumes {name!r}", fix=", ".join(ASSUMPTIONS))
    graph = options.read_graph(file)
    if find:
        from tensor_graphs.rewrites.discover import discover

        places = discover(graph, None if "all" in find else find)
        if json:
            options.print_json({"discovered": [{"composite": p.op.name, "attributes": {k: str(v) for k, v in p.attrs.items()},
                                                "steps": p.steps, "written_at": str(p.node.location),
                                                "verdict": p.verdict.as_json()} for p in places]})
        else:
            print("\n".join(p.show() for p in places) or "nothing was found")
        return
    found = recipes(graph, level=LEVELS[LEVELS.index(level)], count=limit, whole=True if to else None,
                    rules=allowed(tuple(assuming), ("split",) if split else ()),
                    budget=Budget(expanding_depth=depth, depth=max(8, depth + 5), rounds=12 + depth, seconds=seconds))
    steps = found.derive_graph(options.read_graph(to)) if to else ()
    derivation = show_steps(found.saturated.egraph, list(steps)) if to else found.derivation(derive) if derive >= 0 else ""
    if json:
        options.print_json({
            "level": level, "nodes": len(graph.nodes), "paid": paid_nodes(graph), "derivation": derivation.splitlines(),
            "recipes": [{"nodes": len(r.graph.nodes), "paid": r.paid, "rules": list(r.rules), "graph": print_graph(r.graph)}
                        for r in found.list], "report": found.report.as_json()})
        return
    print(f"given: {len(graph.nodes)} nodes, {paid_nodes(graph)} paid")
    for number, r in enumerate(found.list):
        print(f"{number:3}  {len(r.graph.nodes):4} nodes  {r.paid:3} paid  {', '.join(r.rules) or 'as given'}")
    print(found.report.show().splitlines()[-1 - bool(found.report.stopped)])
    if found.report.stopped:
        print(f"stopped: {found.report.stopped}")
    if derivation:
        print("\n" + derivation)
    if derive >= 0 and not to:
        print("\n" + print_graph(found.list[derive].graph), end="")
