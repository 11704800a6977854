"""What a person sees: escaping of text from outside, tables, and progress.

Everyone may import this room; it imports nothing of ours. Text of models, prompts and files reaches the
terminal through ``escape.visible`` only.
"""
