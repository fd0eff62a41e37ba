"""The frozen records on the arrows of the line. Standard library only (3.10 on): workers import this.

A record goes to disk with `to_json` and comes back with `from_json`; unknown keys are an error.
"""

from optpipe.records.compiled import Compiled, Compiling, KeptCode, Scored, Start, bound_to, foreign
from optpipe.records.facts import Hardware, ModelFacts, SourceKind, TensorFact
from optpipe.records.figures import PERCENTILES, Estimated, LoadFigures, Measured, Percentiles
from optpipe.records.jobs import Artifact, EngineSpec, Job, JobResult, Needs, Tool
from optpipe.records.plan import Candidate, CandidatePlan, Compared, Plan, Refusal
from optpipe.records.results import (
    Check,
    Checkpoint,
    Confirmation,
    Evaluation,
    Offline,
    Rank,
    Selection,
    Serving,
    Status,
    TaskQuality,
    TextQuality,
    Trial,
    Tuning,
)
from optpipe.records.serialize import Json, canonical, from_json, to_json
from optpipe.records.versions import Bundle, Challenge, Engine, Published

__all__ = [
    "PERCENTILES",
    "Artifact",
    "Bundle",
    "Candidate",
    "CandidatePlan",
    "Challenge",
    "Check",
    "Checkpoint",
    "Compared",
    "Compiled",
    "Compiling",
    "Confirmation",
    "Engine",
    "EngineSpec",
    "Estimated",
    "Evaluation",
    "Hardware",
    "Job",
    "JobResult",
    "Json",
    "KeptCode",
    "LoadFigures",
    "Measured",
    "ModelFacts",
    "Needs",
    "Offline",
    "Percentiles",
    "Plan",
    "Published",
    "Rank",
    "Refusal",
    "Scored",
    "Selection",
    "Serving",
    "Start",
    "SourceKind",
    "Status",
    "TensorFact",
    "TaskQuality",
    "TextQuality",
    "Tool",
    "Trial",
    "Tuning",
    "bound_to",
    "canonical",
    "foreign",
    "from_json",
    "to_json",
]
