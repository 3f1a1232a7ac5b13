"""An offline embedder: the static word vectors that ship with the package `wordllama`.

The weights (32,000 word pieces, 256 dimensions each) and the tokenizer are read directly from the installed
package; none of its code runs, and nothing is downloaded. The vector of a text is the mean over its pieces,
so word order is ignored. Embedding takes about 30 microseconds per text and finds related words.
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

_WEIGHTS: Final = Path("weights", "l2_supercat_256.safetensors")
_TOKENIZER: Final = Path("tokenizers", "l2_supercat_tokenizer_config.json")
_BATCH: Final = 256


class StaticEmbedder:
    """Vectors of 256 dimensions, offline: ``memory.with_embedder(StaticEmbedder())``. Create one per process.

    Needs the extra ``embeddings``; the weights (33 MB) are read in 0.1 s when the first text is embedded.
    """

    name = "wordllama/l2-supercat-256"

    def __init__(self) -> None:
        self._lock = Lock()
        self._folder = _package_folder()

    def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Return a vector for each text; zeros for a text without words."""
        import numpy as np

        tokenizer, weights = self._model
        vectors: Any = np.zeros((len(texts), weights.shape[1]), dtype=np.float32)
        for start in range(0, len(texts), _BATCH):
            batch = list(texts[start : start + _BATCH])
            encoded = tokenizer.encode_batch(batch, add_special_tokens=False)
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


def _package_folder() -> Path:
    """Return the folder of the installed package, located without importing it."""
    missing = [
        name for name in ("numpy", "safetensors", "tokenizers", "wordllama") if find_spec(name) is None
    ]
    spec = None if missing else find_spec("wordllama")
    if spec is None or spec.origin is None or not (Path(spec.origin).parent / _WEIGHTS).exists():
        raise MissingExtra("StaticEmbedder", "embeddings")
    return Path(spec.origin).parent
