"""The tokenizers of `mistral-common`, one file per version."""

import json
from pathlib import Path

from mistral_common.tokens.tokenizers.base import SpecialTokens
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

DATA = MistralTokenizer._data_path()
SENTENCEPIECE = {
    "v1": "tokenizer.model.v1",
    "v2": "mistral_instruct_tokenizer_240216.model.v2",
    "v3": "mistral_instruct_tokenizer_240323.model.v3",
    "v7": "mistral_instruct_tokenizer_241114.model.v7",
}
TEKKEN = ["v3", "v7", "v11", "v13", "v15"]
THINK = (SpecialTokens.begin_think, SpecialTokens.end_think)


def tokenizers(folder):
    """Every tokenizer file, by name. Later Tekken versions combine the first version's vocabulary with
    the package's special tokens, because their files are published only with checkpoints."""
    files = {f"sentencepiece {version}": DATA / name for version, name in SENTENCEPIECE.items()}
    for version in TEKKEN:
        files[f"tekken {version}"] = tekken(Path(folder), version)
    return files


def tekken(folder, version):
    data = json.loads((DATA / "tekken_240718.json").read_text(encoding="utf-8"))
    data["config"]["version"] = version
    tokens = [t for t in SpecialTokens if version in ("v13", "v15") or t not in THINK]
    data["special_tokens"] = [
        {"rank": rank, "token_str": token.value, "is_control": True}
        for rank, token in enumerate(tokens)
    ]
    if version == "v15":
        effort = {"type": "enum", "values": ["none", "high"], "default": "none"}
        data["model_settings_builder"] = {"reasoning_effort": effort | {"accepts_none": True}}
    path = folder / f"tekken_{version}.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return path
