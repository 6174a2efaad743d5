"""models: lists the families of models that load from folders, with their characteristics."""

from __future__ import annotations

from tensor_graphs.cli import options


def models(imports: options.Imports = None, json: options.Json = False) -> None:
    """List the families of models that load from folders: their model_type, facts and published examples."""
    from tensor_graphs.frontends.huggingface.known_models import known_models

    families = known_models()
    if json:
        options.print_json(
            {"models": [{"model_type": m.kind, "verb": "embed" if m.encoder else "run", "facts": list(m.said), "like": m.like}
                        for m in families]}
        )
        return
    for title, encoder in (("Decoders (tg run FOLDER)", False), ("Sentence encoders (tg embed FOLDER)", True)):
        print(title)
        for m in families:
            if m.encoder == encoder:
                print(f"  {m.kind:12} {', '.join(m.said)}\n  {'':12} like {m.like}")
