"""Export a text encoder of Hugging Face as a model of Horologe, with its tokeniser.

    pip install torch transformers onnx
    python examples/text-encoder/export.py sentence-transformers/all-MiniLM-L6-v2 models/text-encoder
    python examples/text-encoder/export.py --random models/text-encoder     # no download: a small one, not trained

The model returns one vector per text: the mean of the last hidden states of its tokens.
"""

import sys
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

MAX_TOKENS = 128
TEXTS = ["a tree stands beside the older house", "clocks plan ahead", "the quick brown fox jumps over the lazy dog"]
MODEL_TOML = """slo = "100ms"
padded = true       # texts of different lengths share a batch; the mask is 0 where one is padded
max_length = {tokens}

[[inputs]]
name = "input_ids"
datatype = "INT64"
shape = [-1, -1]
warmup = 1

[[inputs]]
name = "attention_mask"
datatype = "INT64"
shape = [-1, -1]
warmup = 1          # zeros would be texts without a token

[[outputs]]
name = "sentence_embedding"
datatype = "FP32"
shape = [-1, {size}]
"""


class Encoder(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        hidden = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
        return (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)


def pretrained(name):
    """Return the model and the tokeniser of a name on the hub, or of a folder."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(name)
    return transformers.AutoModel.from_pretrained(name), tokenizer.backend_tokenizer


def untrained():
    """Return a small BERT with random weights, and a tokeniser that knows the words of `TEXTS`."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(TEXTS, trainers.WordPieceTrainer(special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"]))
    ends = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    config = transformers.BertConfig(vocab_size=tokenizer.get_vocab_size(), **sizes)
    return transformers.BertModel(config, add_pooling_layer=False), tokenizer


def export(name, folder):
    """Write FOLDER/1/model.onnx, model.toml and tokenizer.json."""
    model, tokenizer = untrained() if name == "--random" else pretrained(name)
    encoder, version = Encoder(model.eval()).eval(), folder / "1"
    version.mkdir(parents=True, exist_ok=True)
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.save(str(version / "tokenizer.json"))
    example = torch.ones(2, 8, dtype=torch.int64), torch.ones(2, 8, dtype=torch.int64)  # one tensor would be one input
    sizes = {0: torch.export.Dim("rows", min=1, max=64), 1: torch.export.Dim("tokens", min=2, max=MAX_TOKENS)}
    torch.onnx.export(
        encoder,
        example,
        str(version / "model.onnx"),
        input_names=["input_ids", "attention_mask"],
        output_names=["sentence_embedding"],
        dynamic_shapes={"input_ids": sizes, "attention_mask": sizes},
        dynamo=True,
        external_data=False,
    )
    (version / "model.toml").write_text(MODEL_TOML.format(tokens=MAX_TOKENS, size=model.config.hidden_size))
    return encoder, tokenizer


if __name__ == "__main__":
    export(sys.argv[1], Path(sys.argv[2]))
