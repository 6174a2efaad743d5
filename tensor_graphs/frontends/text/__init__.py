"""text: text to token ids and back, as the files of a model folder say.

Read first: tokenizer.py, then chat_template.py (a chat as one text; untrusted templates run in template_process.py).
"""
