"""The versions that Cloze was made for, as constants: a submitted job carries neither pyproject.toml nor metadata.

In: nothing. Out: exact versions of what decides numbers and protocols. A test compares them with pyproject.toml.
"""

PINNED = {"ray": "2.60.0", "torch": "2.13.0", "deepspeed": "0.19.8", "transformers": "5.24.0"}
# What else a worker imports: any version, but everywhere the same, as the workers of a run exchange arrays and pickles.
PACKAGES = (*PINNED, "tokenizers", "safetensors", "pyarrow", "numpy", "pydantic")
LOWEST_PYTHON = (3, 11)
