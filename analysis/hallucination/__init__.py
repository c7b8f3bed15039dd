"""Hallucination benchmarks through lm-evaluation-harness, Gamma of each item, and statistics between the two (method.md 6)."""
