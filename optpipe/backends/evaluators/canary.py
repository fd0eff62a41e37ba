"""Does the engine answer sensibly at all? Greedy answers to a few prompts, before any figure is believed.

An answer is flawed when
- it is empty (no token, or nothing but white space);
- it repeats: at least 12 tokens of which, after the first two, everything is one token or one cycle of up
  to four tokens. A small model that starts a sentence and loops later is not flagged: it can be right;
- it is garbage: over a fifth of its characters are replacement or control characters;
- a log-probability is missing or not finite (vLLM writes -9999 for minus infinity).

The canary fails when any log-probability is not finite, when all of several answers are the same, or when
answers are flawed whose counterpart in the base's own record (`base`) is not: one is enough for a base that
is known, and half of the answers where there is none. Greedy answers of a sound quantization differ from the
base's in words, not in kind.
"""

from __future__ import annotations

import math
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from optpipe.backends.evaluators.client import UNDEFINED, Engine, Refused
from optpipe.records import Json
from optpipe.worker import Failure, Work

REVISION = 2

PROMPTS = (
    "The capital of France is",
    "Water is made of hydrogen and",
    "Once upon a time, in a small village by the sea, there lived",
    "The three primary colors are red,",
    "To make a cup of tea, first",
    "def add(a, b):\n    return",
)
"""Beginnings that a base model and an instruction-tuned one both go on with."""

SKIPPED, SHORTEST, LONGEST_CYCLE, GARBAGE_SHARE = 2, 12, 4, 0.2


def run(options: Json, work: Work) -> Json:
    """Options `prompts`, `max_tokens`, `base` (the base's record); {"answers", "passed", "reason"}."""
    engine = Engine.of(work.context, options)
    prompts = list(options.get("prompts") or PROMPTS)
    tokens = int(options.get("max_tokens", 48))
    work.progress(0, len(prompts), "canary prompts")
    answers: list[Json] = []
    with ThreadPoolExecutor(max_workers=len(prompts)) as pool:  # an engine answers six as fast as one
        asked = [pool.submit(ask, engine, prompt, tokens) for prompt in prompts]
        for prompt, answer in zip(prompts, asked):
            try:
                answers.append(answer.result())
            except Refused as refused:
                if not engine.healthy():
                    raise Failure(str(refused), hint="the engine is no longer healthy", transient=True) from None
                return {"answers": answers, "passed": False, "reason": f"{prompt!r}: {refused}"}
    reason = verdict(answers, options.get("base"))
    return {"answers": answers, "passed": reason is None, "reason": reason or "every answer is sound"}


def ask(engine: Engine, prompt: str, max_tokens: int) -> Json:
    """One greedy answer, with what is wrong with it."""
    choice = engine.complete(prompt, max_tokens=max_tokens, temperature=0, logprobs=1)
    logprobs: dict[str, Any] = choice.get("logprobs") or {}
    text, tokens = str(choice.get("text") or ""), list(logprobs.get("tokens") or [])
    values = list(logprobs.get("token_logprobs") or [])
    ended = choice.get("finish_reason") == "stop"
    return {
        "prompt": prompt,
        "text": text,
        "tokens": tokens,
        "empty": not text.strip(),
        "repeated": repeated(tokens[:-1] if ended else tokens),
        "garbage": garbage(text),
        "finite": len(values) == len(tokens) and all(finite(value) for value in values),
        "finish": choice.get("finish_reason"),
    }


def finite(logprob: float | None) -> bool:
    return logprob is not None and math.isfinite(logprob) and logprob > UNDEFINED


def repeated(tokens: list[Any]) -> bool:
    """Whether the whole answer, but for its first two tokens, is one cycle of up to four tokens."""
    if len(tokens) < SHORTEST:
        return False
    rest = tokens[SKIPPED:]
    return any(rest[cycle:] == rest[:-cycle] for cycle in range(1, LONGEST_CYCLE + 1))


def garbage(text: str) -> bool:
    """Whether over a fifth of the characters are U+FFFD or control characters."""
    bad = sum(c == "\ufffd" or (c not in "\n\r\t" and unicodedata.category(c) == "Cc") for c in text)
    return bad > GARBAGE_SHARE * max(len(text), 1)


def flaw(answer: Json) -> str | None:
    """What is wrong with an answer, in words."""
    if not answer["finite"]:
        return "a log-probability is missing or not finite"
    if answer["empty"]:
        return "the answer is empty"
    if not answer["tokens"]:
        return "the engine gave no log-probabilities"
    if answer["repeated"]:
        return f"the answer repeats {answer['text'][:24]!r}"
    if answer["garbage"]:
        return f"the answer is garbage: {answer['text'][:24]!r}"
    return None


def verdict(answers: list[Json], base: Json | None) -> str | None:
    """Why the canary fails, or None."""
    for answer in answers:
        if not answer["finite"]:
            return f"{answer['prompt']!r}: {flaw(answer)}"
    if len(answers) > 2 and not answers[0]["empty"] and len({answer["text"] for answer in answers}) == 1:
        return f"all {len(answers)} prompts got the same answer: {answers[0]['text'][:48]!r}"
    excused = {answer["prompt"] for answer in (base or {}).get("answers", []) if flaw(answer)}
    flawed = [(answer["prompt"], flaw(answer)) for answer in answers if flaw(answer)]
    fresh = [(prompt, what) for prompt, what in flawed if prompt not in excused]
    allowed = 0 if base is not None else (len(answers) - 1) // 2
    if len(fresh) <= allowed:
        return None
    prompt, what = fresh[0]
    versus = " where the base's are sound" if base is not None else ""
    return f"{len(fresh)} of {len(answers)} answers are flawed{versus}; {prompt!r}: {what}"
