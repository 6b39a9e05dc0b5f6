"""A tokenizer and a data set in the form torchtitan reads them: a token a character, JSON lines."""

import json
import pathlib

SPECIAL = ("<unk>", "<s>", "</s>")
VOCABULARY = (*SPECIAL, *map(chr, range(32, 125)))  # 96 tokens


def write_text(folder: pathlib.Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": index, "content": token, "special": True}
            | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            for index, token in enumerate(SPECIAL)
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": "."},
            "behavior": "Isolated",
            "invert": False,
        },
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {token: index for index, token in enumerate(VOCABULARY)},
            "unk_token": "<unk>",
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<s>", "eos_token": "</s>"})
    )
    (folder / "c4_test").mkdir(exist_ok=True)
    lines = (
        f"{i} times {i + 1} is {i * (i + 1)}, and {i} squared is {i * i}. " * 3 for i in range(64)
    )
    text = "".join(json.dumps({"text": line}) + "\n" for line in lines)
    (folder / "c4_test" / "data.json").write_text(text)
