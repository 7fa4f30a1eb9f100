"""A tokenizer's Hugging Face folder: written, loaded, checked, described, opened for corpus text.

In: a trained tokenizer, or any folder that `AutoTokenizer` loads. Out: a folder, the numbers that the rest of the road
needs of it, and a `tokenizers.Tokenizer` from whose output no special token comes. Knows nothing of training
(data/vocabulary.py). Nothing here uses the network.
"""

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from data.config import Tokenizer, UserError
from data.families import SPECIALS

if TYPE_CHECKING:
    import tokenizers
    from transformers import PreTrainedTokenizerBase

NEEDED = ("mask", "pad", "cls", "sep")
WITH_UNKNOWN = (*NEEDED, "unk")
NOT_IN_TEXT = "\uffff\uffff"  # Unicode's noncharacter, before the names of special tokens


def save_tokenizer(backend: "tokenizers.Tokenizer", folder: Path, tokenizer: Tokenizer, length: int) -> None:
    """Write a trained tokenizer as a Hugging Face folder; `length` is the most tokens of a row (`model_max_length`).

    The class is the family's where transformers 5 keeps our normaliser in it. AlbertTokenizer and DebertaV2Tokenizer
    put theirs (without NFKC) in its place, and RobertaTokenizer none: the generic class takes tokenizer.json as it is.
    """
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": length}
    if tokenizer.kind == "wordpiece":
        bert = {"do_lower_case": tokenizer.folds_case, "strip_accents": None, "tokenize_chinese_chars": True}
        config |= {"tokenizer_class": "BertTokenizer", **bert}
        vocabulary = sorted(backend.get_vocab().items(), key=lambda item: item[1])
        (folder / "vocab.txt").write_text("".join(f"{token}\n" for token, _ in vocabulary), encoding="utf-8")
    elif tokenizer.kind == "bpe":
        config |= {"model_input_names": ["input_ids", "attention_mask"], "bos_token": "<s>", "eos_token": "</s>"}
        if not tokenizer.folds_case:
            config |= {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": False, "trim_offsets": True}
    else:  # ALBERT's segments, which the generic class does not give by itself
        config["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    config |= {f"{name}_token": token for name, token in SPECIALS[tokenizer.kind].items()}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def load_tokenizer(folder: str | Path, key: str = "tokenizer.path") -> "PreTrainedTokenizerBase":
    """Load the tokenizer of a Hugging Face folder.

    Raises UserError (naming `key`) where there is none, where it is not a fast one, where it lacks a special token
    that pretraining needs, and where it would drop text that it does not know. unk_token may be absent where every
    byte has a token: nothing is unknown there.
    """
    if not Path(folder).is_dir():
        raise UserError(f"{key}={folder}: no such folder; give a Hugging Face tokenizer's folder")
    from transformers import AutoTokenizer

    try:
        # Code of the folder's own is refused; without a word on it transformers would ask on the terminal.
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the Rust library raises nothing narrower, and a folder can be broken in any way
        reason = " ".join(str(error).split())[:160]
        pieces = sorted(path.name for path in Path(folder).glob("*.model"))
        if pieces and not (Path(folder) / "tokenizer.json").is_file():  # transformers tries to read it as tiktoken's
            reason = f"{', '.join(pieces)}: not a SentencePiece model that it converts; {reason}"
        raise UserError(f"{key}={folder}: holds no tokenizer that transformers loads ({reason})") from None
    if not tokenizer.is_fast:
        raise UserError(
            f"{key}={folder}: {type(tokenizer).__name__} is a slow tokenizer, without tokenizer.json; give one that "
            f"transformers loads as a fast tokenizer"
        )
    if len(tokenizer) <= len(_special_ids(tokenizer)):  # transformers makes such a one of a folder without vocabulary
        raise UserError(f"{key}={folder}: holds no vocabulary; add tokenizer.json or the vocabulary's own file")
    knows_bytes = _knows_bytes(tokenizer)
    missing = [
        f"{name}_token"
        for name in (NEEDED if knows_bytes else WITH_UNKNOWN)
        if getattr(tokenizer, f"{name}_token", None) is None
    ]
    if missing:
        raise UserError(f"{key}={folder}: lacks {', '.join(missing)}; add them to the tokenizer or choose another")
    model = _backend(tokenizer).model
    if type(model).__name__ == "BPE" and model.unk_token is None and not knows_bytes:
        raise UserError(
            f"{key}={folder}: drops characters it does not know (BPE without unk_token and without all 256 bytes); "
            f"set unk_token in the model of its tokenizer.json or choose another"
        )
    return tokenizer


def _backend(tokenizer: "PreTrainedTokenizerBase") -> "tokenizers.Tokenizer":
    return cast("tokenizers.Tokenizer", tokenizer.backend_tokenizer)  # every fast one has it; its class does not say so


def _knows_bytes(tokenizer: "PreTrainedTokenizerBase") -> bool:
    """Does every byte have a token, so that no text is unknown?"""
    from tokenizers import pre_tokenizers

    if type(_backend(tokenizer).model).__name__ != "BPE":
        return False
    facts = json.loads(_backend(tokenizer).to_str())
    if facts["model"].get("byte_fallback"):
        return facts["model"]["vocab"].keys() >= {f"<0x{byte:02X}>" for byte in range(256)}
    writes_bytes = '"ByteLevel"' in json.dumps([facts["normalizer"], facts["pre_tokenizer"]])
    return writes_bytes and facts["model"]["vocab"].keys() >= set(pre_tokenizers.ByteLevel.alphabet())


def _special_ids(tokenizer: "PreTrainedTokenizerBase") -> list[int]:
    """Ids of all special tokens, named (mask_token, ...) or not."""
    added = _backend(tokenizer).get_added_tokens_decoder()
    return sorted({*tokenizer.all_special_ids, *(id for id, token in added.items() if token.special)})


def describe_tokenizer(folder: Path) -> dict[str, Any]:
    """What the rest of the road needs to know of a tokenizer: sizes and ids, and a fingerprint of it.

    vocab_size is the largest id + 1, which is more than the number of tokens where ids have holes; unk_id is None
    where nothing is unknown.
    """
    tokenizer = load_tokenizer(folder)
    return {
        "vocab_size": max(len(tokenizer), 1 + max(tokenizer.get_vocab().values())),
        **{f"{name}_id": getattr(tokenizer, f"{name}_token_id") for name in WITH_UNKNOWN},
        "special_ids": _special_ids(tokenizer),
        "fingerprint": _fingerprint(tokenizer),
    }


def fingerprint_of(folder: Path) -> str:
    """Hash of what decides a tokenizer's ids, however its files are laid out. Raises UserError as load_tokenizer."""
    return _fingerprint(load_tokenizer(folder))


def _fingerprint(tokenizer: "PreTrainedTokenizerBase") -> str:
    facts = json.loads(_backend(tokenizer).to_str())
    del facts["truncation"], facts["padding"]  # left behind by its last use
    facts["named"] = {name: getattr(tokenizer, f"{name}_token_id") for name in WITH_UNKNOWN}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def text_backend(tokenizer: str) -> "tokenizers.Tokenizer":
    """A tokenizer.json as it reads text of a corpus: neither cutting nor padding, and no special token in the text.

    `encode_batch` tells word_ids and offsets, `encode_batch_fast` neither.
    """
    from tokenizers import Tokenizer as Backend

    backend = Backend.from_str(hide_special_tokens(tokenizer))
    backend.encode_special_tokens = True
    return backend


def hide_special_tokens(tokenizer: str) -> str:
    """A tokenizer.json with other names for its special tokens, which no text holds, and no truncation or padding.

    The ids stay. "[MASK]" in a document is then four letters and two brackets. `encode_special_tokens` alone does not
    reach that: a unigram model, and any model whose words end at spaces, knows its special tokens as pieces too.
    """
    facts = json.loads(tokenizer)
    facts["truncation"] = facts["padding"] = None
    specials = {token["content"] for token in facts["added_tokens"] if token["special"]}
    model = facts["model"]

    def hide(token: str) -> str:
        return NOT_IN_TEXT + token if token in specials else token

    for token in facts["added_tokens"]:
        token["content"] = hide(token["content"])
    if isinstance(model["vocab"], dict):
        model["vocab"] = {hide(token): id for token, id in model["vocab"].items()}
    else:
        model["vocab"] = [[hide(piece), score] for piece, score in model["vocab"]]
    if model.get("unk_token") is not None:
        model["unk_token"] = hide(model["unk_token"])
    return json.dumps(facts)
