"""From files to a model: config, weights, tokenizer and chat template of safetensors folders, HF ids and GGUF.

May import: torch, numpy, safetensors, gguf, tokenizers, transformers (config and parity check only), jinja2,
``detharness.records``. May not know about engines or kernels. Nothing is downloaded unless the caller asks.
"""
