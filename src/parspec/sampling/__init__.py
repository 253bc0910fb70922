"""What a request asks of the distribution: its parameters, and where and how text comes out of tokens."""
