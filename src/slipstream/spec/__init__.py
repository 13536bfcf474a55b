"""Speculative decoding: who proposes tokens, how many are worth verifying, and what came of them."""
