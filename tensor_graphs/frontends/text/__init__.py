"""text: converts text to token ids and back, by the tokenizer files of a model folder.

Read first: tokenizer.py, then chat_template.py (renders a chat as one prompt; untrusted templates run in template_process.py).
"""
