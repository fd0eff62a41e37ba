"""`AutoModelForCausalLM`: a Hugging Face folder, saved rank by rank as TensorRT-LLM's own checkpoint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tensorrt_llm.mapping import Mapping
from tensorrt_llm.models.modeling_utils import QuantConfig


class AutoModelForCausalLM:
    def __init__(self, folder: Path, dtype: str, mapping: Mapping, quant_config: QuantConfig) -> None:
        self.folder, self.mapping = folder, mapping
        config = json.loads((folder / "config.json").read_text())
        self.config = {
            "architecture": config["architectures"][0],
            "dtype": config["torch_dtype" if "torch_dtype" in config else "dtype"] if dtype == "auto" else dtype,
            "mapping": {"world_size": mapping.world_size, "tp_size": mapping.tp_size},
            "quantization": quant_config.to_dict(),
            "hugging_face": config,
        }

    @classmethod
    def from_hugging_face(
        cls, hf_model_or_dir: str, dtype: str, mapping: Mapping, quant_config: QuantConfig
    ) -> AutoModelForCausalLM:
        return cls(Path(hf_model_or_dir), dtype, mapping, quant_config)

    def save_checkpoint(self, output_dir: str, save_config: bool) -> None:
        shutil.copyfile(self.folder / "model.safetensors", Path(output_dir) / f"rank{self.mapping.rank}.safetensors")
        if save_config:
            (Path(output_dir) / "config.json").write_text(json.dumps(self.config))
