"""Answers of a language model over the memories of each system, judged by the same model (`leaderboard --answer-with`).

The prompts, the model and the budgets are the same for all systems. Questions without an expected answer are left out.
"""

import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple, Self, TypeVar

from openai import OpenAI, OpenAIError
from pydantic import BaseModel

from benchmarks.locomo import Question, Turn

Form = TypeVar("Form", bound=BaseModel)
AT_ONCE = 8  # calls
# Of a call: HTTP and transport, a cut answer; a refusal, a body that is no JSON or of another form.
FAILURES = (OpenAIError, ValueError, TypeError, AttributeError)
ASK = """\
Answer the question from these messages alone, in at most two sentences. If they do not hold the answer, say "unknown".

{messages}

Question: {question}"""
JUDGE = """\
Does the answer state what the expected answer states? Other words, more detail and other formats of a date are right; \
"unknown" is wrong.

Question: {question}
Expected answer: {expected}
Answer: {answer}"""


class Answered(BaseModel):
    """An answer to a question."""

    answer: str


class Verdict(BaseModel):
    """Whether an answer is right."""

    is_correct: bool


class Outcome(NamedTuple):
    """A model's answer to a question and its verdict, or the reason why a call failed."""

    answer: str = ""
    is_correct: bool = False
    failure: str = ""


@dataclass(frozen=True, slots=True)
class AnsweringModel:
    """A model of any service that speaks OpenAI's protocol."""

    client: OpenAI
    model: str

    @classmethod
    def checked(cls, url: str, model: str) -> Self:
        """Return the model after a trial call. Exit if it fails: the key or the URL is wrong, say."""
        # A local service needs no key, but the client does.
        found = cls(OpenAI(base_url=url, api_key=os.environ.get("OPENAI_API_KEY") or "none"), model)
        try:
            found._complete("What is 1 + 1?", Answered)
        except FAILURES as error:
            sys.exit(f"{model} at {url} does not answer: {error}. Check URL, --answer-model and OPENAI_API_KEY")
        return found

    def answer_all(self, asked: Sequence[tuple[Question, Sequence[tuple[Turn, str]]]]) -> list[Outcome]:
        """Answer and judge each question from these turns and their texts. A failed call is a wrong answer."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return [*pool.map(lambda one: self._answer(*one), asked)]

    def _answer(self, question: Question, turns: Sequence[tuple[Turn, str]]) -> Outcome:
        lines = [f"[{turn.time:%Y-%m-%d}] {turn.speaker or turn.role or 'fact'}: {text}" for turn, text in turns]
        lines += ["", f"Today is {question.asked:%Y-%m-%d}."] if question.asked else []
        answer = ""
        try:
            prompt = ASK.format(messages="\n".join(lines), question=question.text)
            answer = self._complete(prompt, Answered).answer
            judged = JUDGE.format(question=question.text, expected=question.answer, answer=answer)
            return Outcome(answer, self._complete(judged, Verdict).is_correct)
        except FAILURES as error:
            return Outcome(answer, failure=f"{type(error).__name__}: {error}"[:200])

    def _complete(self, prompt: str, form: type[Form]) -> Form:
        completion = self.client.chat.completions.parse(
            model=self.model, messages=[{"role": "user", "content": prompt}], temperature=0, response_format=form
        )
        parsed = completion.choices[0].message.parsed if completion.choices else None
        if parsed is None:
            raise ValueError("no answer, or a refusal")
        return parsed
