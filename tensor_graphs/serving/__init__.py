"""serving: generates tokens and text with a compiled model.

In: a loaded model, a compiled graph with a session, texts or token ids.  Out: token ids and text, one at a time.
May import: every room above (language … frontends).  Never: cli.
Read first: generate.py (prefill, then one token at a time), then sampling.py (the next token)
and conversation.py (messages of a chat). Many requests at once: requests.py (the protocol), scheduler.py (who computes what in a
step) over pages.py, step.py (the step on a model), engine.py; load.py measures it.
embed.py runs an encoder on many texts.
Words: stop ids = token ids that end a generation; transcript = the tokens that a session's caches hold; page = the keys and values
of some tokens of one sequence; portion = tokens of one sequence in one step.
"""
