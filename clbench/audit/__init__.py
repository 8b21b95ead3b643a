"""Audits of fine-tuned models: what did they lose of their base model, where, and what helps."""
