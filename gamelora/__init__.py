"""GAME-LoRA: fine-tuning that prices the externalities between attention heads. Imports analysis, never pages."""
