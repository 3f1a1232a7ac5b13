"""An embedder that works offline: the static word vectors that the package `wordllama` brings along.

The weights (32,000 pieces of words, 256 numbers each) and the tokenizer are read straight out of the wheel;
none of its code runs, and nothing is downloaded. The vector of a text is the mean of its pieces. It knows no
order of words, costs 30 microseconds a text, and finds what says the same in related words.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any, Final

from treering.errors import MissingExtra
from treering.memory.vectors import Embedder, FunctionEmbedder

__all__ = ["Embedder", "FunctionEmbedder", "StaticEmbedder"]

_WEIGHTS: Final = Path("weights", "l2_supercat_256.safetensors")
_TOKENIZER: Final = Path("tokenizers", "l2_supercat_tokenizer_config.json")
_BATCH: Final = 256


class StaticEmbedder:
    """Vectors of 256 numbers, offline: ``memory.with_embedder(StaticEmbedder())``. One is enough a process.

    It needs the extra ``embeddings``; the weights are read (0.1 s, 33 MB) when the first text comes.
    """

    name = "wordllama/l2-supercat-256"

    def __init__(self) -> None:
        self._lock = Lock()
        self._folder = _wheel()

    def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """A vector for each text; of a text without any word, zeros."""
        import numpy as np

        tokenizer, weights = self._model
        vectors: Any = np.zeros((len(texts), weights.shape[1]), dtype=np.float32)
        for start in range(0, len(texts), _BATCH):
            part = list(texts[start : start + _BATCH])
            encoded = tokenizer.encode_batch(part, add_special_tokens=False)
            for row, each in enumerate(encoded, start):
                if each.ids:
                    vectors[row] = weights[each.ids].mean(axis=0)
        return vectors.tolist()

    @cached_property
    def _model(self) -> tuple[Any, Any]:
        with self._lock:
            import numpy as np
            from tokenizers import Tokenizer

            tokenizer: Any = Tokenizer.from_file(str(self._folder / _TOKENIZER))
            tokenizer.no_padding()
            tokenizer.no_truncation()
            load_file: Any = import_module("safetensors.numpy").load_file
            weights: Any = load_file(self._folder / _WEIGHTS)["embedding.weight"].astype(np.float32)
            return tokenizer, weights


def _wheel() -> Path:
    """Where the package lies; it is looked for, not imported."""
    missing = [
        name for name in ("numpy", "safetensors", "tokenizers", "wordllama") if find_spec(name) is None
    ]
    found = None if missing else find_spec("wordllama")
    if found is None or found.origin is None or not (Path(found.origin).parent / _WEIGHTS).exists():
        raise MissingExtra("StaticEmbedder", "embeddings")
    return Path(found.origin).parent
