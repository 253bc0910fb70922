"""The HTTP server: the OpenAI protocol, metrics and a page, in front of an `AsyncLLM`."""
