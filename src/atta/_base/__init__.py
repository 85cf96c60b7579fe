"""What all other packages use.

errors    `InputError`, `Advice` and helpers for messages
files     complete writes, locks, hashes
tensors   safetensors files with a digest; numbers as tensors
settings  check arguments by their annotations
types     shapes of tensors as types
display   the progress bar, tables for notebooks
"""
