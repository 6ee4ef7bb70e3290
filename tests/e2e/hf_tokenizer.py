"""The tokenizer of a GGUF file, as the programs of others want one: a folder that Hugging Face's libraries load without a network."""

import json

from gguf_file import GgufFile

CONTROL = 3  # the type of a token that text never makes


def write(model, folder):
    """Of a model with GPT-2's byte-level BPE whose digits stand alone, as SmolLM2's."""
    meta = {key: value for key, (_, value) in GgufFile(model).meta.items()}
    kind, cutting = meta["tokenizer.ggml.model"], meta["tokenizer.ggml.pre"]
    assert (kind, cutting) == (b"gpt2", b"smollm"), f"{model}: only SmolLM2's way of cutting text is known here, not {kind} {cutting}"
    tokens = [token.decode() for token in meta["tokenizer.ggml.tokens"][1]]
    control = [i for i, type_of in enumerate(meta["tokenizer.ggml.token_type"][1]) if type_of == CONTROL]
    whole = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    bytes_of_text = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": tokens[i], **whole} for i in control],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, bytes_of_text]},
        "decoder": bytes_of_text,
        "model": {
            "type": "BPE",
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [merge.decode().split(" ") for merge in meta["tokenizer.ggml.merges"][1]],
        },
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[meta["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[meta["tokenizer.ggml.eos_token_id"]],
        "chat_template": meta["tokenizer.chat_template"].decode(),
    }
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
