"""Encode texts with a model of export.py: pip install horologe tokenizers

python examples/text-encoder/encode.py models/text-encoder/1/tokenizer.json "a tree" "an older house"
"""

import os
import sys

import numpy as np
from tokenizers import Tokenizer

import horologe


def encode(client, tokenizer, texts, slo_ms=5000):
    """Return the vector of each text. Each is a request of its own length: the server pads and batches them."""
    requests = []
    for encoding in tokenizer.encode_batch(texts):
        tokens, mask = np.array([encoding.ids]), np.array([encoding.attention_mask])
        requests.append({"input_ids": tokens, "attention_mask": mask})
    return [
        outputs["sentence_embedding"][0] for outputs in client.predict_many("text-encoder", requests, slo_ms=slo_ms)
    ]


if __name__ == "__main__":
    endpoint = os.environ.get("HOROLOGE_ENDPOINT", "tcp://127.0.0.1:8003")
    with horologe.Client(endpoint) as client:
        vectors = np.stack(encode(client, Tokenizer.from_file(sys.argv[1]), sys.argv[2:]))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    print("cosine similarities:")
    print(np.round(vectors @ vectors.T, 2))
