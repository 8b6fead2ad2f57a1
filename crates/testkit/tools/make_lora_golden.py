"""Makes the adapter golden `llama__embed_dora`: peft's DoRA of the embedding, the head and two
projections, with random factors and magnitudes, and peft's logits.

Usage: python make_lora_golden.py GOLDENS_LORA. Needs peft 0.21.2, torch and transformers 5.22.2.
"""

import json
import sys
from pathlib import Path

import peft
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

NAME = "llama__embed_dora"


def base_model(goldens):
    return AutoModelForCausalLM.from_pretrained(goldens / "base" / "llama", dtype=torch.float32)


def main():
    goldens = Path(sys.argv[1])
    out = goldens / NAME
    torch.manual_seed(11)
    fields = {"r": 4, "lora_alpha": 8, "use_dora": True, "task_type": "CAUSAL_LM"}
    targets = ["embed_tokens", "lm_head", "q_proj", "down_proj"]
    model = get_peft_model(base_model(goldens), LoraConfig(target_modules=targets, **fields))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_magnitude" in name:
                weight.mul_(1 + 0.2 * torch.rand_like(weight))
            elif "lora_" in name:
                weight.copy_(0.1 * torch.randn_like(weight))
    # Without copies of the base's tables.
    model.save_pretrained(out, save_embedding_layers=False)
    (out / "README.md").unlink(missing_ok=True)
    config_path = out / "adapter_config.json"
    config = json.loads(config_path.read_text())
    config["base_model_name_or_path"] = "llama"
    config_path.write_text(json.dumps(config, indent=2) + "\n")

    prompt = load_file(goldens / "llama__embed" / "golden.safetensors")["prompt_b"]
    loaded = PeftModel.from_pretrained(base_model(goldens), out).eval()
    ids = prompt.to(torch.int64).view(1, -1)
    with torch.no_grad():
        logits = loaded(input_ids=ids).logits[0]
        merged = loaded.merge_and_unload()(input_ids=ids).logits[0]
    print("merged differs by", (merged - logits).abs().max().item())
    save_file({"prompt_b": prompt, "logits_b": logits.contiguous()}, out / "golden.safetensors")
    golden = {"name": NAME, "base": "../base/llama", "kind": "embed_dora", "r": 4, "alpha": 8}
    golden["merged_by_peft_diff"] = (merged - logits).abs().max().item()
    golden |= {"peft": peft.__version__, "transformers": transformers.__version__}
    golden["torch"] = torch.__version__
    (out / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
