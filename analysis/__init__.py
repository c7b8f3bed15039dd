"""Measures how the attention heads of a model act together. Knows neither Streamlit nor training."""
