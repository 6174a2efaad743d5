"""http: answers HTTP requests in the form of OpenAI's API with an engine or an encoder.

In: a model to serve (`served.py`), limits.  Out: responses, streams of server-sent events, metrics, a chat page.
May import: fastapi, uvicorn and prometheus_client (extra `serve`), and nothing else in this package may.
Read first: app.py (the routes), then schemas.py (what a request may hold) and choices.py (from tokens to text).
Words: choice = one of the answers to a request; piece = the text that became certain with a token; door = checks before all routes.
"""
