"""OpenAI-compatible servers over HTTP: where they are, what is sent, what comes back. Nothing here compares."""
