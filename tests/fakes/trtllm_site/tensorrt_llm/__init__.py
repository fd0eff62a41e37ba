"""Stands for the package in an environment of TensorRT-LLM up to 1.2: what converting a checkpoint imports."""
