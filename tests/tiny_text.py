"""A tiny model that reads text: a byte-level BPE tokenizer trained on a few sentences, on a random model."""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from analysis.hallucination.benchmarks import BUILTIN_FOLDER
from analysis.heads import attention_layers
from analysis.models import LoadedModel
from tests.tiny import tiny_model

VOCAB = 400


def tiny_tokenizer(bos: bool = False) -> PreTrainedTokenizerFast:
    """400 tokens: all bytes and the commonest pairs of the built-in suite; adds <s> in front when `bos`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=["<pad>", "<s>", "</s>"], initial_alphabet=alphabet)
    tokenizer.train([str(path) for path in sorted(BUILTIN_FOLDER.glob("*.jsonl"))], trainer)
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>")


def loaded(model, tokenizer=None, adapter: str | None = None, **model_provenance) -> LoadedModel:
    """A model in memory as load_model would return it."""
    described = {"source": "tiny", "name": "tiny", "sha256": "tiny", "dtype": "float32", **model_provenance}
    provenance = {"model": described, "adapter": adapter and {"source": adapter, "sha256": adapter}}
    return LoadedModel(model, tokenizer or tiny_tokenizer(), attention_layers(model), provenance)


def tiny_loaded(architecture: str = "llama", seed: int = 0, bos: bool = False, **settings) -> LoadedModel:
    """A tiny random model with the tiny tokenizer and a window of 512 tokens."""
    settings = {"vocab_size": VOCAB, "max_position_embeddings": 512, **settings}
    return loaded(tiny_model(architecture, "sdpa", seed, **settings), tiny_tokenizer(bos), sha256=f"{architecture}-{seed}")


def save_tiny_folder(folder: Path, **settings) -> Path:
    """The tiny model with its tokenizer as a folder on disk."""
    tiny = tiny_loaded(**settings)
    tiny.model.save_pretrained(folder)
    tiny.tokenizer.save_pretrained(folder)
    return folder
