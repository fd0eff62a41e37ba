"""How fast transformers generates, greedy, every answer as long: JSON of tokens per second, run by run.

    python generate.py MODEL PROMPT_TOKENS NEW_TOKENS RUNS BATCH...

Standard library only at import; runs where torch and transformers are, on the GPU where there is one.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def measure(folder: str, prompt: int, new: int, runs: int, batches: list[int]) -> dict[str, Any]:
    """{batch: [output tokens per second of each run]} after one run that does not count, with the device's name."""
    import torch
    from transformers import AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(device).eval()
    torch.manual_seed(1)
    found: dict[str, list[float]] = {}
    for batch in batches:
        ids = torch.randint(3, model.config.vocab_size, (batch, prompt), device=device)
        seconds = []
        for _ in range(runs + 1):
            started = time.perf_counter()
            with torch.inference_mode():
                made = model.generate(
                    ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new, do_sample=False
                )
            if device == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - started)
        assert made.shape == (batch, prompt + new), "every answer is as long as asked"
        found[str(batch)] = [batch * new / one for one in seconds[1:]]
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    return {"device": name, "tokens_per_s": found}


if __name__ == "__main__":
    place, *numbers = sys.argv[1:]
    prompt, new, runs, *batches = map(int, numbers)
    sys.stdout.write(json.dumps(measure(place, prompt, new, runs, batches)) + "\n")
